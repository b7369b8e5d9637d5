"""The machine apart from its GPUs: CPUs, memory, /dev/shm, limits, ports, clock, environment."""

from __future__ import annotations

import os
import resource
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from orchestrator.doctor.check import GIB, MIB, Check, by_room, gib, green, red, yellow
from orchestrator.serving.ports import PORTS_FROM, free_ports

LOW_MEMORY = 4 * GIB
LOW_SHM = GIB
LEAST_SHM = 64 * MIB
"""What container runtimes give unless told otherwise; too little for NCCL between GPUs."""
LOW_OPEN_FILES = 4096
LOW_PROCESSES = 4096
LOW_CPUS = 4
PROXIES = ("http_proxy", "https_proxy", "grpc_proxy", "all_proxy")
SLOWING = ("NCCL_P2P_DISABLE", "NCCL_IB_DISABLE", "NCCL_SHM_DISABLE")
LOOPBACK = ("127.0.0.1", "localhost")
CLOCK_SKEW_S = 5.0


def cpus(busy_1min: float | None = None) -> list[Check]:
    """How many there are for us, and how busy they are (load average of a minute)."""
    count = len(os.sched_getaffinity(0))
    busy = os.getloadavg()[0] if busy_1min is None else busy_1min
    what = f"{count} for us, load average {busy:.1f}"
    if busy > 0.75 * count + 1:
        return [
            yellow("CPUs", what, "Other work keeps them busy: latencies will be too high. Wait for it, or stop it.")
        ]
    if count < LOW_CPUS:
        return [yellow("CPUs", what, f"Server, load generator and Ray share them: give the job {LOW_CPUS} or more, or expect too high latencies at many streams.")]  # fmt: skip
    return [green("CPUs", what)]


def memory(
    meminfo: Path = Path("/proc/meminfo"),
    own_cgroup: Path = Path("/proc/self/cgroup"),
    cgroups: Path = Path("/sys/fs/cgroup"),
) -> list[Check]:
    """RAM, swap, and what the container may use of it."""
    have = _meminfo(meminfo)
    available, total = have["MemAvailable"], have["MemTotal"]
    what = f"{gib(available)} of {gib(total)} available"
    remedy = "Free some: a server that loads a model with too little is killed by the kernel (host_oom)."
    ram = by_room("RAM", available, LOW_MEMORY, what, remedy)
    return [ram, _swap(have), _container(cgroup_limit(own_cgroup, cgroups), total)]


def _swap(have: Mapping[str, int]) -> Check:
    used = have.get("SwapTotal", 0) - have.get("SwapFree", 0)
    what = f"{gib(used)} of {gib(have.get('SwapTotal', 0))} in use"
    if used > GIB:
        return yellow("swap", what, "Memory was short: find out who needs it; a swapping host measures its disk.")
    return green("swap", what)


def _container(found: tuple[int, int] | None, total: int) -> Check:
    if found is None or found[0] >= total:
        return green("container memory", "no limit below the machine's RAM")
    limit, used = found
    what = f"limit {gib(limit)} (machine: {gib(total)}), {gib(used)} in use, the page cache counted in"
    return by_room("container memory", limit, LOW_MEMORY, what, "Raise the container's or job's memory limit.")


def _meminfo(path: Path) -> dict[str, int]:
    """Bytes by name."""
    lines = (line.split() for line in path.read_text(encoding="ascii").splitlines())
    found = {words[0].rstrip(":"): int(words[1]) * 1024 for words in lines if len(words) >= 2}
    if not {"MemTotal", "MemAvailable"} <= found.keys():
        raise ValueError(f"{path} names no MemAvailable")
    return found


def cgroup_limit(own: Path, root: Path) -> tuple[int, int] | None:
    """(limit, in use), in bytes, of the narrowest cgroup around us, of either version; None: there is no limit.

    In a container the path that the kernel names may lie outside of what is mounted; its root is ours then.
    """
    found = []
    for line in own.read_text(encoding="utf-8").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            found += _limits(root, path, "memory.max", "memory.current")
        elif "memory" in controllers.split(","):
            found += _limits(root / "memory", path, "memory.limit_in_bytes", "memory.usage_in_bytes")
    return min(found, default=None)


def _limits(root: Path, path: str, limit_name: str, used_name: str) -> list[tuple[int, int]]:
    folders = [root / path.lstrip("/"), *(root / path.lstrip("/")).parents]
    found = []
    for folder in folders[: folders.index(root) + 1]:
        try:
            limit = (folder / limit_name).read_text(encoding="ascii").strip()
            used = int((folder / used_name).read_text(encoding="ascii"))
        except FileNotFoundError:
            continue
        if limit != "max" and int(limit) < 2**60:  # version 1 writes a huge number for none
            found.append((int(limit), used))
    return found


LARGE_SHM_FILE = 64 * MIB


def shared_memory(folder: Path = Path("/dev/shm"), several_gpus: bool = False) -> list[Check]:  # noqa: S108
    """Room in /dev/shm, and what lies there; nothing in it is ever removed."""
    stat = os.statvfs(folder)
    free, total = stat.f_bavail * stat.f_frsize, stat.f_blocks * stat.f_frsize
    what = f"{gib(free)} of {gib(total)} free in {folder}; {_lying_in(folder)}"
    remedy = f"Give the container more (--shm-size=16g or --ipc=host), or remove what nobody uses in {folder}."
    if free < LEAST_SHM and several_gpus:
        return [red("shared memory", what, f"NCCL cannot connect the GPUs of a server. {remedy}")]
    return [yellow("shared memory", what, remedy) if free < LOW_SHM else green("shared memory", what)]


def _lying_in(folder: Path) -> str:
    files = []
    for entry in os.scandir(folder):
        try:
            files.append((entry.stat(follow_symlinks=False), entry.name))
        except FileNotFoundError:
            continue
    if not files:
        return "nothing lies there"
    largest, name = max(files, key=lambda item: item[0].st_size)
    hours = (time.time() - largest.st_mtime) / 3600
    count = f"{len(files)} file{'s' if len(files) > 1 else ''}"
    if largest.st_size < LARGE_SHM_FILE:
        return f"{count}, none of them large"
    return f"{count}, the largest {name} ({gib(largest.st_size)}, of user {largest.st_uid}, {hours:.1f} h old)"


def limits(open_files: tuple[int, int] | None = None, processes: tuple[int, int] | None = None) -> list[Check]:
    """What this shell lets a process have: (soft, hard), both given on to every server."""
    files = open_files or resource.getrlimit(resource.RLIMIT_NOFILE)
    threads = processes or resource.getrlimit(resource.RLIMIT_NPROC)
    locked = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    return [
        _limit("open files", files, LOW_OPEN_FILES, "-n 65536", "a stream is a connection, Ray needs hundreds more"),
        _limit("processes", threads, LOW_PROCESSES, "-u 65536", "threads count, and each library starts one a core"),
        green("locked memory", f"{'no limit' if locked < 0 else gib(locked)} (only InfiniBand wants more)"),
    ]


def _limit(name: str, found: tuple[int, int], low: int, flag: str, why: str) -> Check:
    soft, hard = found
    what = f"{'no limit' if soft < 0 else soft} (at most {'any' if hard < 0 else hard})"
    if 0 <= soft < low:
        return yellow(name, what, f"Raise it in the shell that starts the sweep: ulimit {flag} ({why}).")
    return green(name, what)


def ports(host: str = LOOPBACK[0], proc: Path = Path("/proc")) -> list[Check]:
    """Whether servers find ports: a launch takes two, drawn below the kernel's own range."""
    last = int((proc / "sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split()[0])
    taken = sum(PORTS_FROM <= port < last for port in _listening(proc))
    left = max(0, last - PORTS_FROM - taken)
    what = f"{left} of {max(0, last - PORTS_FROM)} between {PORTS_FROM} and {last} are not listened on"
    try:
        free_ports(host, 2)
    except OSError as error:
        return [red("ports", f"{what}; {error}", f"Is {host} an address of this machine? engine.host=127.0.0.1 is.")]
    if left < 100:
        return [yellow("ports", what, "Raise the lower end of net.ipv4.ip_local_port_range with sysctl.")]
    return [green("ports", what)]


def _listening(proc: Path) -> set[int]:
    ports = set()
    for table in ("tcp", "tcp6"):
        try:
            lines = (proc / "net" / table).read_text(encoding="ascii").splitlines()[1:]
        except FileNotFoundError:
            continue
        ports |= {int(words[1].rpartition(":")[2], 16) for words in map(str.split, lines) if words[3] == "0A"}
    return ports


def clock(folder: Path, now: float | None = None) -> list[Check]:
    """Whether the clock runs behind our own files, or differs from that of the file system of `folder`."""
    now = time.time() if now is None else now
    ours = Path(__file__).stat().st_mtime
    remedy = "Set it (timedatectl set-ntp true): runs are named by it, and budget.hours is counted with it."
    if now < ours - 86400:
        return [yellow("clock", f"{_day(now)} is before this program was installed, {_day(ours)}", remedy)]
    with tempfile.TemporaryFile(dir=folder) as probe:
        skew_s = os.fstat(probe.fileno()).st_mtime - now
    if abs(skew_s) > CLOCK_SKEW_S:
        return [yellow("clock", f"{_day(now)}; the file system of {folder} is {skew_s:+.0f} s off", remedy)]
    return [green("clock", f"{_day(now)}, as the file system of {folder} has it")]


def _day(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(at))


def environment(variables: Mapping[str, str] | None = None) -> list[Check]:
    """Variables that change what a sweep sees or how fast servers are.  Values of proxies are not shown."""
    have = os.environ if variables is None else variables
    checks = [*_proxies(have), *_visible(have)]
    if slow := [f"{name}={have[name]}" for name in SLOWING if have.get(name, "0") not in ("", "0")]:
        checks.append(yellow("NCCL", ", ".join(slow), "Servers inherit it and get slower between GPUs: unset what you do not mean."))  # fmt: skip
    return checks or [green("environment", "no variable that would matter")]


def _proxies(have: Mapping[str, str]) -> list[Check]:
    given = [name for name in have if name.lower() in PROXIES and have[name]]
    around = {host.strip() for name in ("no_proxy", "NO_PROXY") for host in have.get(name, "").split(",")}
    if not given:
        return []
    what = f"{', '.join(given)} set"
    if around & {*LOOPBACK, "*"}:
        return [green("proxy", f"{what}, loopback excepted")]
    return [yellow("proxy", f"{what}, loopback not excepted", "Ray's own connections may go there and hang: export no_proxy=localhost,127.0.0.1,<this host's address>.")]  # fmt: skip


def _visible(have: Mapping[str, str]) -> list[Check]:
    if "CUDA_VISIBLE_DEVICES" not in have:
        return []
    what = f"CUDA_VISIBLE_DEVICES={have['CUDA_VISIBLE_DEVICES']!r}: a sweep uses these GPUs only"
    return [yellow("visible GPUs", what, "Unset it to use all, or leave it when you mean it.")]
