"""Constructs records for the tests."""
import json
import pathlib
import sys

sys.dont_write_bytecode = True
FOLDER = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(FOLDER))

import records  # noqa: E402

HASH = "ab78a4006d0f1d0fe4c1e28ab28708bcccc7d70ed7f6980520cb89f5464feae8"
OTHER_HASH = "cd" * 32


def run(topology, workers, step_ms, servers=0, **fields):
    """A run as compare.json has it, 32 samples per worker and step, p10 and p90 2 % aside unless given."""
    placement = "dedicated" if topology == "ps" else ""
    value = {
        "library": "gradsync", "topology": topology, "link": "grpc", "update": "worker", "placement": placement,
        "workers": workers, "servers": servers or (1 if topology == "ps" else 0), "model": "resnet18",
        "data": "synthetic", "batch_size": 32, "threads": 1, "steps": 37, "step_ms_p50": step_ms,
        "step_ms_p10": 0.98 * step_ms, "step_ms_p90": 1.02 * step_ms, "samples_per_s": workers * 32e3 / step_ms,
        "breakdown_ms": {"data": 0.1, "forward": 0.3 * step_ms, "backward": 0.5 * step_ms, "exposed": 0.15 * step_ms,
                         "update": 0.05 * step_ms - 0.1},
        "exposed_ms_p50": 0.15 * step_ms, "wire_tx_bytes_max_node": 44.7e6, "cpu_ms_per_step": 80,
        "final_loss": 0.5, "params_sha256": HASH, "consistency": "bsp", "busbw_gb_per_s": None}
    value.update(fields)
    if "batch_size" in fields:
        value["samples_per_s"] = workers * value["batch_size"] * 1e3 / step_ms
    return value


def parse(*runs, **fields):
    return records.parse(json.dumps({"runs": list(runs), **fields}), "compare.json")


GRADIENTS = 5e6  # bytes
BANDWIDTHS = ("200mbit", "1gbit")


def _emulated(topology, workers, servers, placement, bandwidth, load, mode):
    """A step whose exchange takes load · M / B, half of it hidden behind 60 ms of computation."""
    batch = 32 if mode == "weak" else 64 // workers
    compute, wire = 60 * batch / 32, load * GRADIENTS / records.bytes_per_s(bandwidth) * 1e3
    exposed = max(0, wire - compute / 2)
    step = round(compute + exposed, 3)
    made = run(topology, workers, step, servers, bandwidth=bandwidth, placement=placement, profile="resnet50_2core",
               params_sha256="", scaling_efficiency=compute / step, cpu_share=0.4, batch_size=batch, model="resnet50",
               step_ms_p10=0.96 * step, step_ms_p90=1.07 * step, wire_tx_bytes_max_node=load * GRADIENTS,
               breakdown_ms={"data": 0.2, "forward": compute / 3, "backward": 0.6 * compute, "exposed": exposed,
                             "update": compute / 15})
    if mode == "strong":
        made["global_batch_size"] = 64
    return made


def sweep():
    """Everything that a file can hold: bandwidths, both kinds of scaling, predictions, curves, an invalid run."""
    runs, predictions = [], []
    for bandwidth in BANDWIDTHS:
        for workers in (1, 2, 4, 8):
            ring = 2 * (workers - 1) / workers
            for topology, servers, placement, load in (
                    ("ring", 0, "", ring), ("ps", 1, "dedicated", workers), ("ps", 2, "dedicated", max(1, workers / 2)),
                    ("ps", workers, "dedicated", 1), ("ps", workers, "colocated", ring),
                    ("ps", 2, "mixed", max(1, ring - 0.3))):
                for mode in ("weak", "strong"):
                    made = _emulated(topology, workers, servers, placement, bandwidth, load, mode)
                    if any(all(made[key] == old[key] for key in ("topology", "workers", "servers", "placement",
                                                                 "bandwidth", "batch_size", "step_ms_p50")) and
                           old.get("global_batch_size") == made.get("global_batch_size") for old in runs):
                        continue
                    predictions.append({
                        **{key: made[key] for key in ("topology", "placement", "workers", "servers", "bandwidth",
                                                      "batch_size", "scaling_efficiency", "model")},
                        "global_batch_size": made.get("global_batch_size", 0),
                        "step_ms_p50": 0.97 * made["step_ms_p50"], "samples_per_s": made["samples_per_s"] / 0.97})
                    if (placement, workers, servers) == ("dedicated", 8, 2):
                        made.update(invalid="CPU share of 0.93 is above 0.70", samples_per_s=98765)
                    runs.append(made)
    networks = [{"bandwidth": bandwidth, "hosts": 10, "burst_bytes": 16384, "congestion_control": "cubic",
                 "tcp_rmem": "4096 131072 131072", "tcp_wmem": "4096 131072 131072", "tcp_factor": 0.951}
                for bandwidth in BANDWIDTHS]
    for i, consistency in enumerate(("bsp", "ssp:3", "asp")):
        runs.append(run("ps", 4, 150 - 20 * i, 2, model="mlp", data="cifar10:cifar", consistency=consistency,
                        straggler="0:3", max_staleness=3 * i, staleness_histogram=[90, 40 * i, 20 * i, 5 * i],
                        curve=[{"seconds": s * (15 - 2 * i) / 10, "step": 10 * s,
                                "loss": 2.3 / (1 + 0.2 * s) + 0.02 * i, "accuracy": 0.1 + 0.05 * s} for s in range(10)]))
    runs.append(run("ring", 4, 145, model="mlp", data="cifar10:cifar", straggler="0:3"))
    machine = {"cpu": "AMD EPYC", "cores": 2, "memory_bytes": 25276510208, "os": "Debian GNU/Linux 12 (bookworm)",
               "kernel": "Linux 6.1", "compiler": "GCC 12.2.0", "build_mode": "opt",
               "versions": {"libtorch": "1.13.0", "grpc": "1.51.1"}, "date": "2026-11-21T10:50:05Z"}
    return {"machine": machine, "command": "bazel run //benchmarks:compare -- --bandwidth=200mbit,1gbit",
            "runs": runs, "predictions": predictions, "networks": networks}
