# Ends the process group of a command if the tool is killed. Standard input is a line with the group and the tenths of a second
# between SIGTERM and SIGKILL, and ends with the tool.
trap '' HUP INT QUIT TERM TSTP
read -r group tries || exit 0
while read -r _; do :; done
kill -TERM "-$group"
kill -CONT "-$group"
while [ "$tries" -gt 0 ] && kill -0 "-$group"; do
    tries=$((tries - 1))
    sleep 0.1 || sleep 1
done
kill -KILL "-$group"
