#!/bin/bash -e
# Boots the node, step by step as docker-sonic-vs's start-up does, and stops where that one would:
# an ethN without a lane ends it, and so does a config_db.json that cannot be replaced (a bind of that single file).

ln -sfn "/usr/share/sonic/device/$PLATFORM" /usr/share/sonic/platform
ln -sfn "/usr/share/sonic/device/$PLATFORM/$HWSKU" /usr/share/sonic/hwsku

cd /usr/share/sonic/hwsku
[ -f lanemap.ini.orig ] || cp lanemap.ini lanemap.ini.orig
ports=$(ls /sys/class/net | grep -E '^eth[0-9]+$' | grep -v '^eth0$' | sort -V) || ports=""
for port in $ports; do
    grep "^$port:" lanemap.ini.orig || { echo "$HWSKU has no lane for $port" >&2; exit 1; }
done >lanemap.ini
cd /

mkdir -p /etc/sonic /var/run/redis/sonic-db
cp /etc/default/sonic-db/database_config.json /var/run/redis/sonic-db/

python3 -m fabtest.litenode.container merge >/tmp/config_db.json
mv /tmp/config_db.json /etc/sonic/config_db.json

supervisorctl start redis-server
python3 -m fabtest.litenode.container load
rm -f /run/litenode.pid /run/litenode.shut
supervisorctl start litenode
for _ in $(seq 300); do
    [ -e /run/litenode.pid ] && break
    sleep 0.1
done
supervisorctl start zebra staticd
