#!/bin/sh
# Install, in a container of CI, the daemons and commands of SLURM. Where that cannot be done, or would start them for all
# the machine, the tests of SLURM are skipped aloud.
set -u
PATH=$PATH:/usr/sbin:/sbin
complete() { for program in slurmctld slurmd sbatch srun munged; do command -v "$program" >/dev/null || return 1; done; }

complete && exit 0
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null || [ -d /run/systemd/system ]; then
    echo "tests of SLURM need slurmctld, slurmd, slurm-client and munge; they are skipped without them" >&2
    exit 0
fi
export DEBIAN_FRONTEND=noninteractive
install() {
    apt-get install -qq -y --no-install-recommends -o DPkg::Lock::Timeout=120 slurmctld slurmd slurm-client munge
}
{ install || { apt-get update -qq && install; }; } >/dev/null 2>&1
complete || echo "SLURM could not be installed; its tests are skipped" >&2
exit 0
