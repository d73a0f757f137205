"""Reads compare.json (proto/run_record.proto) and checks the types of what the report uses.

Fields that a file lacks, as files of older versions do, get their zero; fields that are not known here are ignored.
"""
import json
import math
import re
import types

TEXT, NUMBER, WHOLE, NUMBERS, TEXTS = "text", "a number", "a whole number", "a list of numbers", "texts by name"
YES_OR_NO = "true or false"

BREAKDOWN = {name: NUMBER for name in ("data", "forward", "backward", "exposed", "update")}
CURVE_POINT = {name: NUMBER for name in ("seconds", "step", "loss", "accuracy")}

RUN = {
    **{name: TEXT for name in (
        "library", "topology", "link", "update", "placement", "bandwidth", "model", "data", "params_sha256",
        "consistency", "compression", "invalid", "straggler", "profile", "failure", "device", "precision",
        "nccl_version", "nccl_asked", "nccl_chosen", "mesh", "pipeline_schedule", "split")},
    **{name: YES_OR_NO for name in ("channels_last", "tf32", "bytes_uncounted", "own_order")},
    **{name: WHOLE for name in ("workers", "servers", "batch_size", "threads", "steps", "max_staleness",
                                "micro_batches", "zero", "data_parallel", "model_parallel")},
    **{name: NUMBER for name in (
        "bytes", "bucket_bytes", "samples_per_s", "scaling_efficiency", "step_ms_p50", "step_ms_p10", "step_ms_p90",
        "exposed_ms_p50", "cpu_ms_per_step", "cpu_share", "first_loss", "final_loss", "accuracy",
        "wire_tx_bytes_max_node", "wire_rx_bytes_max_node", "wire_tx_bytes_total", "global_batch_size", "compute_scale",
        "wrong", "samples_per_s_low", "samples_per_s_high", "step_ms_low", "step_ms_high")},
    **{name: NUMBERS for name in ("staleness_histogram", "round_samples_per_s", "round_step_ms_p50")},
    "round_params_sha256": [TEXT],
    "breakdown_ms": BREAKDOWN,
    "curve": [CURVE_POINT],
}

NETWORK = {
    **{name: TEXT for name in ("bandwidth", "congestion_control", "tcp_rmem", "tcp_wmem")},
    "hosts": WHOLE, "burst_bytes": NUMBER, "tcp_factor": NUMBER,
}

MACHINE = {
    **{name: TEXT for name in ("cpu", "os", "kernel", "compiler", "build_mode", "date", "commit")},
    "cores": WHOLE, "memory_bytes": NUMBER, "versions": TEXTS, "dirty": YES_OR_NO,
}

RECORDS = {"machine": MACHINE, "command": TEXT, "runs": [RUN], "predictions": [RUN], "networks": [NETWORK],
           "no_network": TEXT}

EPOCH = {"epoch": WHOLE, "steps": WHOLE,
         **{name: NUMBER for name in ("samples", "loss", "accuracy", "global_loss", "global_accuracy")}}

WORKER = {"world_size": WHOLE, "step_stride": WHOLE, "loss": NUMBERS, "epochs": [EPOCH]}

EXPECTED = {dict: "an object", list: "a list"}
ZERO = {TEXT: "", NUMBER: 0.0, WHOLE: 0, NUMBERS: [], TEXTS: {}, YES_OR_NO: False}


class BadInput(Exception):
    """What is wrong with the input, in one line for the user."""


def _wrong(where, expected, found):
    text = json.dumps(found)
    return BadInput(f"{where}: expected {expected}, found {text if len(text) <= 40 else text[:37] + '...'}")


def _number(value, where):
    # Protobuf writes numbers that JSON lacks as these words; a loss that diverged is one.
    if value in ("NaN", "Infinity", "-Infinity"):
        return float(value.replace("Infinity", "inf"))
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise _wrong(where, NUMBER, value)
    return float(value)


def _read(shape, value, where):
    if isinstance(shape, (dict, list)):
        if value is None:
            value = type(shape)()
        if not isinstance(value, type(shape)):
            raise _wrong(where, EXPECTED[type(shape)], value)
        if isinstance(shape, list):
            return [_read(shape[0], item, f"{where}[{i}]") for i, item in enumerate(value)]
        return types.SimpleNamespace(
            **{name: _read(inner, value.get(name), f"{where}.{name}") for name, inner in shape.items()})
    if value is None:
        return ZERO[shape]
    if shape == NUMBERS and isinstance(value, list):
        return [_number(item, f"{where}[{i}]") for i, item in enumerate(value)]
    if shape == TEXTS and isinstance(value, dict):
        return {str(name): str(text) for name, text in value.items()}
    if shape == YES_OR_NO and isinstance(value, bool):
        return value
    if shape == TEXT and isinstance(value, str):
        return value
    if shape == NUMBER:
        return _number(value, where)
    if shape == WHOLE and isinstance(value, (int, float)) and not isinstance(value, bool) and value == int(value):
        return int(value)
    raise _wrong(where, shape, value)


def parse(text, name):
    """The records in `text`, which came from the file `name`. Raises BadInput."""
    value = _json(text, name)
    if not isinstance(value, dict) or "runs" not in value:
        raise BadInput(f"{name}: expected an object with \"runs\", as //benchmarks:compare writes it")
    records = _read(RECORDS, value, name)
    if not records.runs:
        raise BadInput(f"{name}: expected at least one run, found none")
    for i, run in enumerate(records.runs):
        where = f"{name}.runs[{i}]"
        if run.workers < 1:
            raise BadInput(f"{where}.workers: expected at least 1, found {run.workers}")
        for field in ("samples_per_s", "step_ms_p50", "step_ms_p10", "step_ms_p90"):
            if not math.isfinite(getattr(run, field)) or getattr(run, field) < 0:
                raise BadInput(f"{where}.{field}: expected a finite number that is not negative, "
                               f"found {getattr(run, field)}")
    if not any(run.samples_per_s > 0 and run.step_ms_p50 > 0 for run in records.runs):
        raise BadInput(f"{name}: expected runs that trained, as //benchmarks:compare writes them, found none with "
                       "samples_per_s and step_ms_p50")
    records.predictions = [run for run in records.predictions if run.workers >= 1]
    for run in records.runs + records.predictions:
        if run.topology != "ps":
            run.placement, run.servers = "", 0
        if run.compute_scale <= 0:
            run.compute_scale = 1.0
        run.device = run.device or "cpu"
    return records


def parse_worker(text, name):
    """What a worker wrote to --metrics_json and `text` has, of a job whose epochs it knows. Raises BadInput."""
    value = _json(text, name)
    if not isinstance(value, dict) or "world_size" not in value:
        raise BadInput(f"{name}: expected an object with \"world_size\", as --metrics_json of //worker writes it")
    worker = _read(WORKER, value, name)
    worker.step_stride = max(1, worker.step_stride)
    if not worker.epochs or not worker.loss or not all(epoch.steps > 0 for epoch in worker.epochs):
        raise BadInput(f"{name}: expected losses and epochs of training, found none")
    return worker


def _json(text, name):
    try:
        return json.loads(text)
    except ValueError as error:
        raise BadInput(f"{name}: expected JSON, found something else: {error}") from None


def _text(path):
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except OSError as error:
        raise BadInput(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise BadInput(f"{path}: expected JSON in UTF-8, found other bytes") from None


def load(path):
    """The records in the file `path`. Raises BadInput."""
    return parse(_text(path), path)


def load_worker(path):
    """As parse_worker() of the file's text. Raises BadInput."""
    return parse_worker(_text(path), path)


BANDWIDTH = re.compile(r"([0-9.]+)\s*(k|m|g|t)?bit", re.IGNORECASE)
BITS = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}


def bytes_per_s(bandwidth):
    """Of "400mbit" and its like; 0 when nothing is emulated or the text is not understood."""
    match = BANDWIDTH.fullmatch(bandwidth.strip())
    try:
        return float(match.group(1)) * BITS[(match.group(2) or "").lower()] / 8 if match else 0.0
    except ValueError:
        return 0.0


def usable(run):
    """Whether the figures may be compared and drawn."""
    return not run.invalid and not run.failure and run.samples_per_s > 0 and run.step_ms_p50 > 0
