# Removes a container when standard input ends without a line. This happens when the process that started the container ends,
# for whatever reason, without dropping its server. A line on standard input means that the process has removed the container.
#   remove.sh <name of the container>
trap '' INT TERM HUP
read -r _ && exit
# If the process ended while it started the container, the engine may create the container only after the first attempt.
for pause in 0 2 10; do
    sleep $pause
    docker rm --force --volumes "$1" || podman rm --force --volumes "$1" ||
        curl --silent --fail --request DELETE --unix-socket /var/run/docker.sock \
            "http://localhost/containers/$1?force=true&v=true"
done
