# Runs initdb and postgres. Stops them and removes their folder when standard input ends. This happens when the process that
# started this one drops the server or ends, for whatever reason.
#   watch.sh <folder> <folder of the programs> <options of postgres>...
dir=$1 bin=$2
shift 2
exec 3<&0 </dev/null

# A background job must read from another descriptor: its descriptor 0 is /dev/null.
(
    cat <&3 >/dev/null
    true >"$dir/stop"
    tries=0
    # A background job ignores QUIT until the program installs its own handlers, so a signal may be lost.
    # $dir/pid is removed as soon as the process ends, so that another process that gets its number is not signalled.
    until [ -e "$dir/ended" ] || [ $tries -gt 600 ]; do
        if read -r pid <"$dir/pid"; then
            if [ $tries -lt 300 ]; then kill -QUIT "$pid"; else kill -KILL "$pid"; fi
        fi
        tries=$((tries + 1))
        sleep 0.05 || sleep 1
    done
    rm -rf "$dir"
) 2>/dev/null &

# The programs write to files only: a pipe without a reader would fill up and block them.
run() {
    log=$1
    shift
    [ -e "$dir/stop" ] && return 1
    "$@" >"$log" 2>&1 3<&- &
    echo $! >"$dir/pid"
    wait $!
    status=$?
    rm -f "$dir/pid"
    return $status
}

cd "$dir" && run "$dir/initdb.log" "$bin/initdb" --pgdata="$dir/data" --username=postgres --auth=trust \
    --encoding=UTF8 --locale=C --no-sync && run "$dir/server.log" "$bin/postgres" -D "$dir/data" "$@"
status=$?
true >"$dir/ended"
exit $status
