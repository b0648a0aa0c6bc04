#!/bin/sh
# Install the programs with which tests make hosts of network namespaces: sshd, ip, tc, nft. Where that cannot be done, or
# would start a ssh server for all the world, those tests are skipped aloud.
set -u
PATH=$PATH:/usr/sbin:/sbin
complete() { for program in ssh sshd ip tc nft nsenter; do command -v "$program" >/dev/null || return 1; done; }

complete && exit 0
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null || [ -d /run/systemd/system ]; then
    echo "tests of many hosts need openssh-server, iproute2 and nftables; they are skipped without them" >&2
    exit 0
fi
export DEBIAN_FRONTEND=noninteractive
install() { apt-get install -qq -y --no-install-recommends openssh-client openssh-server iproute2 nftables util-linux; }
{ install || { apt-get update -qq && install; }; } >/dev/null 2>&1
complete || echo "openssh-server, iproute2 and nftables could not be installed; tests of many hosts are skipped" >&2
exit 0
