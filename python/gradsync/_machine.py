"""What measurements say of the machine that they were made on: Machine of proto/run_record.proto."""
import datetime
import os
import platform
import re


def _found(path: str, pattern: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            match = re.search(pattern, file.read(), re.MULTILINE)
    except OSError:
        match = None
    return match[1] if match else "unknown"


def machine(**versions: str) -> dict[str, object]:
    """`versions`: of libraries, by name."""
    now = datetime.datetime.now(datetime.timezone.utc)
    return {"cpu": _found("/proc/cpuinfo", r"^model name\s*: (.*)$"), "cores": len(os.sched_getaffinity(0)),
            "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            "os": _found("/etc/os-release", r'^PRETTY_NAME="?(.*?)"?$'), "kernel": f"{platform.system()} {platform.release()}",
            "versions": {"python": platform.python_version(), **versions}, "date": now.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "commit": "unknown"}
