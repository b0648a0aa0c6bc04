"""A host's shape is what its processes may use, not what the machine has."""

from pathlib import Path

import pytest

from orchestra.hosts.shape import Hosts, HostShape, memory_text, one_core, this_machine

FILES = {"proc/meminfo": "MemTotal:       16777216 kB\nMemFree: 1 kB\n", "proc/self/cgroup": "0::/jobs/17\n"}


def shape(root: Path, files: dict[str, str], *, affinity: int = 8, **variables: str) -> HostShape:
    for name, text in (FILES | files).items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return this_machine(root=root, environment=variables, affinity=affinity)


@pytest.mark.parametrize(
    ("files", "affinity", "cores"),
    [
        ({}, 8, 8),
        ({"sys/fs/cgroup/jobs/17/cpu.max": "300000 100000"}, 8, 3),
        ({"sys/fs/cgroup/jobs/17/cpu.max": "max 100000", "sys/fs/cgroup/jobs/cpu.max": "250000 100000"}, 8, 2),
        ({"sys/fs/cgroup/jobs/17/cpu.max": "300000 100000", "sys/fs/cgroup/cpu.max": "200000 100000"}, 8, 2),
        ({"sys/fs/cgroup/jobs/17/cpu.max": "300000 100000"}, 2, 2),
        ({"sys/fs/cgroup/jobs/17/cpu.max": "50000 100000"}, 8, 1),
        ({"sys/fs/cgroup/cpu.max": "400000 100000"}, 8, 4),  # the path is one of the machine outside a container
        (
            {
                "proc/self/cgroup": "3:cpu,cpuacct:/jobs\n2:memory:/x\n0::/\n",
                "sys/fs/cgroup/cpu,cpuacct/jobs/cpu.cfs_quota_us": "200000",
                "sys/fs/cgroup/cpu,cpuacct/jobs/cpu.cfs_period_us": "100000",
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "-1",
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000",
            },
            *(8, 2),
        ),
    ],
)
def test_cores_are_the_affinity_within_every_quota(
    tmp_path: Path, files: dict[str, str], affinity: int, cores: int
) -> None:
    assert shape(tmp_path, files, affinity=affinity).cores == cores


@pytest.mark.parametrize(
    ("files", "nbytes"),
    [
        ({}, 16 << 30),
        ({"sys/fs/cgroup/jobs/memory.max": str(3 << 30), "sys/fs/cgroup/jobs/17/memory.max": "max"}, 3 << 30),
        ({"sys/fs/cgroup/memory.max": str(99 << 30)}, 16 << 30),
        (
            {"proc/self/cgroup": "2:memory:/x\n", "sys/fs/cgroup/memory/x/memory.limit_in_bytes": str(2 << 30)},
            2 << 30,
        ),
    ],
)
def test_memory_is_that_of_the_machine_within_every_limit(tmp_path: Path, files: dict[str, str], nbytes: int) -> None:
    assert shape(tmp_path, files).memory == nbytes


@pytest.mark.parametrize(
    ("visible", "gpus"),
    [
        *((None, 2), ("", 0), ("0,1,2", 3), ("1", 1), ("-1", 0), ("0,-1,1", 1), ("NoDevFiles", 0)),
        *(("GPU-8932f937-d72c,GPU-1", 2), ("MIG-GPU-8932/1/0", 1)),
    ],
)
def test_gpus_are_those_that_cuda_shows_to_the_process(tmp_path: Path, visible: str | None, gpus: int) -> None:
    files = {f"proc/driver/nvidia/gpus/{name}/information": "" for name in ("0000:01", "0000:02")}
    assert shape(tmp_path, files, **({} if visible is None else {"CUDA_VISIBLE_DEVICES": visible})).gpus == gpus


def test_gpus_of_a_container_are_its_devices(tmp_path: Path) -> None:
    assert shape(tmp_path, {"dev/nvidia0": "", "dev/nvidiactl": "", "dev/nvidia-uvm": ""}).gpus == 1
    assert shape(tmp_path / "other", {}).gpus == 0


def test_this_machine_has_a_core_and_memory() -> None:
    here = this_machine(3, plays=False)
    assert (here.slot, here.plays) == (3, False)
    assert here.cores >= 1
    assert here.memory > 1 << 20
    assert one_core(here).cores == 1


def test_hosts_are_in_the_order_of_their_slots() -> None:
    shapes = [HostShape(2, "c", 4), HostShape(0, "a", 8, gpus=2, memory=64 << 30, plays=False), HostShape(1)]
    hosts = Hosts(shapes)
    assert [host.slot for host in hosts] == [0, 1, 2]
    assert [host.slot for host in hosts.playing] == [1, 2]
    assert hosts.at(2) is shapes[0]
    assert hosts.at(7) is None
    assert list(map(str, hosts)) == [
        "0 (a): 8 cores, 2 GPUs, 64.0 GiB, does not play",
        "1 (?): ? cores",
        "2 (c): 4 cores",
    ]
    with pytest.raises(ValueError, match=r"^slot 1 appears twice: \? and d$"):
        Hosts([*shapes, HostShape(1, "d")])


def test_a_request_replaces_what_a_host_reports() -> None:
    assert HostShape(1, "a", 8, 1, 1 << 30).requested(cores=2) == HostShape(1, "a", 2, 1, 1 << 30)
    assert [memory_text(n) for n in (0, 1023, 1536, 1 << 50)] == ["0 B", "1023 B", "1.5 KiB", "1024.0 TiB"]
