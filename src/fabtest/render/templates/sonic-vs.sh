#!/bin/bash
# Brings a switch up under containerlab's `sonic-vs` kind: docker-sonic-vs of any release, or fabtest/sonic-lite.
#
#   sonic-vs.sh prepare   before supervisord starts: configuration, port map
#   sonic-vs.sh boot      after it, and after every restart; returns at once. /run/fabtest-boot says how it went
#                         (starting, ready, failed: ...), /var/log/fabtest-boot.log what it did
#   sonic-vs.sh reload    brings the running FRR to frr.conf

here=/var/sonic
state=/run/fabtest-boot
log=/var/log/fabtest-boot.log

say() { echo "$(date +%T) $*" >>"$log"; }

state() {
    echo "$*" >"$state.new" && mv "$state.new" "$state"
    say "$*"
}

fail() {
    state "failed: $*"
    exit 1
}

# Wait until a command succeeds: within SECONDS COMMAND...
within() {
    local deadline=$((SECONDS + $1))
    shift
    until "$@" >/dev/null 2>&1; do
        [ $SECONDS -lt $deadline ] || return 1
        sleep 0.2
    done
}

prepare() {
    local device=/usr/share/sonic/device/$PLATFORM
    mkdir -p /etc/sonic "$device/fabtest"
    # Everything else a device folder holds stays the image's own.
    cp -rn "$device/Force10-S6000/." "$device/fabtest/"
    rm -f "$device"/fabtest/*.orig
    cp "$here"/hwsku/* "$device/fabtest/"
    cp "$here/config_db.json" /etc/sonic/config_db.json
    routing
    echo "service integrated-vtysh-config" >/etc/frr/vtysh.conf
    chown -R frr:frr /etc/frr
}

routing() {
    if [ -d /usr/lib/python3/dist-packages/fabtest ]; then # a lite node: its FRR is not SONiC's
        python3 -m fabtest.litenode.container frr <"$here/frr.conf" >/etc/frr/frr.conf
    else
        cp "$here/frr.conf" /etc/frr/frr.conf
    fi
}

supervised() { supervisorctl pid; }
answers() { sonic-db-cli CONFIG_DB PING | grep -qE 'PONG|True'; }
running() { supervisorctl status "$1" | grep -q RUNNING; }
known() { supervisorctl status "$1" | grep -q "^$1 "; }
has_bgp() { vtysh -c 'show running-config' | grep -q '^router bgp'; }

start_supervisor() {
    # containerlab starts it when it deploys, not when it restarts a node.
    if [ "$1" = deployed ] && within 15 supervised; then return; fi
    supervised >/dev/null 2>&1 && return
    if [ "$here/config_db.json" -nt /etc/sonic/config_db.json ] || [ "$here/frr.conf" -nt /etc/frr/frr.conf ]; then
        prepare
    fi
    rm -f /var/run/redis/frr.applied /var/run/redis/frr.refused /var/run/frr/*.vty /var/run/frr/*.api /var/run/redis/redis.sock
    setsid supervisord >>"$log" 2>&1 9>&- &
    within 30 supervised || fail "supervisord does not start"
}

# Two interfaces belong to each port, the wire ethN and Ethernet<n>; only the second may speak IP.
quiet_wires() {
    local wire
    for wire in /sys/class/net/eth[1-9]*; do
        wire=${wire##*/}
        ip link set dev "$wire" arp off
        echo 1 2>/dev/null >"/proc/sys/net/ipv6/conf/$wire/disable_ipv6"
    done
}

kernel() {
    local key value
    while IFS='=' read -r key value; do
        echo "$value" 2>/dev/null >"/proc/sys/${key//.//}" || say "this kernel does not know $key"
    done <"$here/sysctl.conf"
    # What has no route in the fabric must not leave by the management network.
    ip route del default dev eth0 2>/dev/null
    ip -6 route del default dev eth0 2>/dev/null
}

boot() {
    local port wire
    state starting
    command -v supervisord >/dev/null || fail "this image has no supervisord: it is no docker-sonic-vs"
    start_supervisor "$1"
    quiet_wires
    kernel
    within 90 answers || fail "Redis does not answer: $(supervisorctl status start.sh redis-server | tr -s ' \n' ' ')"
    while read -r port wire; do
        [ -e "/sys/class/net/$wire" ] || fail "wire $wire of $port has gone: the container was restarted by Docker, not by containerlab"
        within 60 test -e "/sys/class/net/$port" || fail "port $port does not appear"
    done <"$here/ports"
    within 60 test -S /var/run/frr/zserv.api || fail "zebra does not start"
    # The image starts bgpd too, often before zebra, which bgpd would look for again only after ten seconds. It may do so
    # between any two of these lines: who started it does not matter, and what tells that it runs is an answer. Its
    # socket must not be removed here: it may be that of the bgpd that has just started.
    if running bgpd; then supervisorctl stop bgpd; fi
    supervisorctl start bgpd
    within 30 vtysh -d bgpd -c 'show version' || fail "bgpd does not start"
    if [ "${FABTEST_BFD:-}" = 1 ]; then
        known bfdd || fail "this image has no bfdd: set bgp.bfd to false"
        running bfdd || supervisorctl start bfdd
        within 30 test -S /var/run/frr/bfdd.vty || fail "bfdd does not start"
    fi
    # Interfaces that came meanwhile are quieted too; then FRR learns its configuration.
    quiet_wires
    vtysh -b
    within 30 has_bgp || fail "FRR did not take frr.conf: $(tail -n 1 "$log")"
    state ready
}

case ${1:-} in
    prepare)
        prepare >>"$log" 2>&1 && state prepared
        ;;
    boot)
        how=restarted
        [ "$(cat $state 2>/dev/null)" = prepared ] && how=deployed
        (
            flock -n 9 || exit 0
            boot $how
        ) 9>/run/fabtest-boot.lock </dev/null >>"$log" 2>&1 &
        ;;
    reload)
        routing && exec /usr/lib/frr/frr-reload.py --reload --stdout --log-level error /etc/frr/frr.conf
        ;;
    *)
        sed -n '2,8p' "$0"
        exit 2
        ;;
esac
