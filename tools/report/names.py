"""How runs are called in sentences, legends and tables."""
from records import bytes_per_s

LINKS = {"grpc": "gRPC", "tcp": "TCP", "shm": "shared memory", "gloo": "Gloo", "nccl": "NCCL"}
PLACEMENT_ORDER = ["", "dedicated", "colocated", "mixed"]
TOPOLOGY_ORDER = ["ring", "ps", "local"]


def count(number, noun):
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def number(value, digits=3):
    """With about so many significant digits, thousands separated."""
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "∞" if value > 0 else "−∞"
    size = abs(value)
    places = 0
    while places < 4 and size < 10 ** (digits - 1 - places) and size > 0:
        places += 1
    text = f"{value:,.{places}f}"
    return text.replace("-", "−")


def percent(fraction):
    value = 100 * fraction
    text = f"{abs(value):.0f}" if abs(value) >= 0.95 or value == 0 else f"{abs(value):.1f}"
    return f"{'−' if value < 0 and float(text) else ''}{text} %"


def bandwidth(text):
    bits = 8 * bytes_per_s(text)
    if bits <= 0:
        return text
    return f"{bits / 1e6:,.10g} Mbit/s" if bits >= 1e6 else f"{bits / 1e3:,.10g} kbit/s"


def bandwidth_phrase(text):
    return f"at {bandwidth(text)}" if text else "on one machine, with no network emulated,"


def link(run):
    return LINKS.get(run.link, run.link)


def codec(run):
    return run.compression if run.compression not in ("", "none") else ""


def consistency(run):
    return run.consistency if run.consistency not in ("", "bsp") else ""


def arrangement(run):
    """"pipeline=2, gpipe, 4 micro-batches, cut before 8, zero=1"; "" where each rank has the whole model."""
    parts = [run.mesh, run.pipeline_schedule]
    if run.micro_batches:
        parts.append(f"{run.micro_batches:,} micro-batch{'' if run.micro_batches == 1 else 'es'}")
    if run.split:
        parts.append(f"cut before {run.split}")
    if run.zero:
        parts.append(f"zero={run.zero}")
    if run.model_parallel > 1:
        parts.append(f"{run.model_parallel} stages in each")
    if run.data_parallel > 1:
        parts.append(f"{run.data_parallel} replicas in each")
    return ", ".join(part for part in parts if part)


def computation(run):
    """"bf16, channels-last"; "" for what is usual."""
    parts = [run.precision] if run.precision not in ("", "fp32") else []
    if run.channels_last:
        parts.append("channels-last")
    if run.tf32:
        parts.append("TF32")
    return ", ".join(parts)


def nccl(run):
    """"2.28.9 asked for NCCL_ALGO=Ring chose AllReduce RING/SIMPLE"; "" where NCCL had no part."""
    if not run.nccl_version:
        return ""
    return f"{run.nccl_version} asked for {run.nccl_asked or 'nothing'} chose {run.nccl_chosen or 'unknown'}"


def options(run):
    """What sets a run apart besides topology, servers and link."""
    parts = []
    if run.update == "owner":
        parts.append("update at owner")
    if codec(run):
        parts.append(codec(run))
    if consistency(run):
        parts.append(consistency(run))
    if arrangement(run):
        parts.append(arrangement(run))
    return parts


def topology(run):
    """"the ring", "2 dedicated parameter servers"."""
    if run.topology == "ps" and run.placement == "mixed":
        # `servers` counts the dedicated ones (benchmarks/options/placed_job.h).
        return f"{count(run.servers, 'dedicated parameter server')} and one beside each worker"
    if run.topology == "ps":
        return count(run.servers, f"{run.placement} parameter server".strip())
    return {"ring": "the ring", "local": "no exchange at all"}.get(run.topology, run.topology)


def sentence(run, with_link=True):
    """For use in a sentence."""
    text = topology(run)
    if with_link and run.link:
        text += f" over {link(run)}"
    extra = options(run)
    return text + (f" ({', '.join(extra)})" if extra else "")


def servers_and_placement(servers, placement):
    """"2 dedicated"; mixed are those and n beside the workers: "2 + n mixed"."""
    return f"{servers}{' + n' if placement == 'mixed' else ''} {placement}".strip()


def short(run):
    """For bars and rows: "ps, 2 dedicated, gRPC"."""
    parts = [run.topology if run.library in ("", "gradsync") else run.library]
    if run.topology == "ps":
        parts.append(servers_and_placement(run.servers, run.placement))
    if run.link:
        parts.append(link(run))
    return ", ".join(parts + options(run))


def joined(parts):
    """"a", "a and b", "a, b and c"."""
    parts = list(parts)
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}" if parts else ""


def order(run):
    """Sorts runs the way in which people list them."""
    def index(known, value):
        return known.index(value) if value in known else len(known)
    return (index(TOPOLOGY_ORDER, run.topology), run.topology, index(PLACEMENT_ORDER, run.placement), run.placement,
            run.servers, list(LINKS).index(run.link) if run.link in LINKS else len(LINKS), run.link,
            run.update == "owner", codec(run), consistency(run) == "asp", consistency(run))
