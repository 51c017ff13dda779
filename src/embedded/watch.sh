# Runs initdb and postgres, and ends them and removes their folder once standard input ends: that is when the process
# that started this one lets go of the server or dies, in whatever way.
#   watch.sh <folder> <folder of the programs> <options of postgres>...
dir=$1 bin=$2
shift 2
exec 3<&0 </dev/null

# A background job must take its input from another descriptor: number 0 is /dev/null for it.
(
    cat <&3 >/dev/null
    true >"$dir/stop"
    tries=0
    # A background job ignores QUIT until the program installs its own handlers: one signal may be lost.
    # $dir/pid is gone as soon as the process is, so that no other process that gets the number is signalled.
    until [ -e "$dir/ended" ] || [ $tries -gt 600 ]; do
        if read -r pid <"$dir/pid"; then
            if [ $tries -lt 300 ]; then kill -QUIT "$pid"; else kill -KILL "$pid"; fi
        fi
        tries=$((tries + 1))
        sleep 0.05 || sleep 1
    done
    rm -rf "$dir"
) 2>/dev/null &

# The programs write to files only: nobody reads a pipe for them, and one that is full would stop them.
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
