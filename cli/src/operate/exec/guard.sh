# Ends the process group of a command if the tool is killed, or does not write in time, because it was stopped: others would get
# the slots, and the command would go on. Standard input is a line with the group and the tenths of a second between SIGTERM and
# SIGKILL. Each later line is the seconds after which the next one must have come, or 0: it may take any time. The input ends
# with the tool. If a line was late, standard output says so. The guard and its timers are a process group, which ends as a whole.
trap '' HUP INT QUIT TERM TSTP
# Ends the timers, which do not trap it. No caller of the tool can have made it ignored.
trap : PIPE
# What the tool inherited, such as a lock, is not the guard's.
exec 3<&- 4<&- 5<&- 6<&- 7<&- 8<&- 9<&-
# Without `sleep`, no time would pass.
sleep 0.1 || sleep 1 || exit 0
end() {
    kill -TERM "-$group"
    kill -CONT "-$group"
    while [ "$1" -gt 0 ] && kill -0 "-$group"; do
        set -- $(($1 - 1))
        sleep 0.1 || sleep 1
    done
    kill -KILL "-$group"
    kill -KILL 0
}
read -r group tries || exit 0
while read -r left; do
    # The timer must not miss the signal. Its `sleep` may get only that of the group.
    kill -KILL "$timer"
    kill -PIPE 0
    timer=
    if [ "$left" != 0 ]; then
        { { sleep "$left" || sleep "${left%.*}"; } && { echo late; end $((tries / 2)); }; } &
        timer=$!
    fi
done
kill -KILL "$timer"
end "$tries"
