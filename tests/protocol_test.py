#!/usr/bin/python3
"""A client written from proto/ and docs/protocol.md alone: it trains.

Skipped where Debian's python3-grpcio or protoc is missing (tools/setup installs them)."""
import hashlib
import os
import pathlib
import queue
import random
import struct
import subprocess
import sys
import tempfile
import threading
import time
import unittest

sys.dont_write_bytecode = True

try:
    import grpc
except ImportError:
    grpc = None

ROOT = pathlib.Path.cwd()
SERVER = str(ROOT / "ps_server/ps_server")
EXCHANGE = "/gradsync.proto.FrameLink/Exchange"
PATIENCE = 60


def compile_protos():
    """Python's modules of proto/, made by protoc."""
    folder = tempfile.mkdtemp()
    names = ["frame", "frame_link", "parameter_server", "plan"]
    subprocess.run(["protoc", "-I.", f"--python_out={folder}"] + [f"proto/{name}.proto" for name in names], cwd=ROOT,
                   check=True)
    sys.path.insert(0, folder)
    from proto import frame_pb2, parameter_server_pb2, plan_pb2
    return frame_pb2, parameter_server_pb2, plan_pb2


def number(value):
    return "%.17g" % value


class Cut:
    """Where the chunks of a bucket are: docs/protocol.md, "Chunks"."""

    def __init__(self, elements, workers, chunk_bytes):
        self.elements, self.workers = elements, workers
        self.stripes = -(-elements // (workers * (chunk_bytes // 4)))
        self.size = -(--(-elements // (self.stripes * workers)) // 16) * 16

    def range(self, slot):
        return min(self.elements, slot * self.size), min(self.elements, (slot + 1) * self.size)

    def push_order(self, rank):
        for stripe in range(self.stripes):
            for position in range(self.workers):
                slot = stripe * self.workers + (rank - 1 - position) % self.workers
                begin, end = self.range(slot)
                if begin < end:
                    yield slot


def fingerprint(plan, cuts):
    text = (f"world_size {plan.world_size}\nchunk_bytes {plan.chunk_bytes}\ncompression none\n"
            f"optimizer {plan.optimizer.kind}\n")
    for i, g in enumerate(plan.optimizer.groups):
        text += (f"group {i} lr_scale {number(g.lr_scale)} momentum {number(g.momentum)} "
                 f"dampening {number(g.dampening)} weight_decay {number(g.weight_decay)} beta1 {number(g.beta1)} "
                 f"beta2 {number(g.beta2)} eps {number(g.eps)} nesterov {int(g.nesterov)}\n")
    for b, bucket in enumerate(plan.buckets):
        offset = 0
        for t in bucket.tensors:
            tensor = plan.tensors[t]
            numel = 1
            for size in tensor.sizes:
                numel *= size
            text += (f"bucket {b} offset {offset} {tensor.name} sizes [{','.join(map(str, tensor.sizes))}] "
                     f"strides [{','.join(map(str, tensor.strides))}] group {tensor.group}\n")
            offset += -(-numel // 16) * 16
        text += f"bucket {b} stripes {cuts[b].stripes} of chunks of {cuts[b].size}\n"
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class Stream:
    """One call of Exchange."""

    def __init__(self, address, metadata=()):
        self.frames = queue.Queue()
        self.channel = grpc.insecure_channel(address, options=[("grpc.max_send_message_length", -1),
                                                               ("grpc.use_local_subchannel_pool", 1)])
        method = self.channel.stream_stream(EXCHANGE, request_serializer=lambda frame: frame,
                                            response_deserializer=frame_pb2.Frame.FromString)
        self.call = method(iter(self.frames.get, None), metadata=list(metadata), timeout=PATIENCE)

    def send(self, kind, payload=b"", **fields):
        frame = frame_pb2.Frame(payload=payload)
        frame.header.kind = frame_pb2.FrameHeader.Kind.Value(kind)
        for name, value in fields.items():
            setattr(frame.header, name, value)
        self.frames.put(frame.SerializeToString())

    def hear(self, *kinds):
        """The next frame, of which CREDIT is none; of one of these kinds."""
        for frame in self.call:
            name = frame_pb2.FrameHeader.Kind.Name(frame.header.kind)
            if name == "CREDIT":
                continue
            assert name in kinds, f"expected {kinds}, found {frame.header}"
            return frame
        raise AssertionError(f"expected {kinds}, found the end")

    def outcome(self):
        """How a call that should be refused ends: a status, or FAILED."""
        try:
            for frame in self.call:
                if frame.header.kind == frame_pb2.FrameHeader.FAILED:
                    return f"FAILED {frame.header.error.code} {frame.header.error.message}"
                return f"ANSWER {frame.header}"
            return "END"
        except grpc.RpcError as error:
            return f"{error.code().name} {error.details()}"

    def close(self):
        self.frames.put(None)
        self.call.cancel()
        self.channel.close()


class Case(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)

    def start(self, *argv, port=None):
        """Starts a program; with `port` waits for the address that it writes."""
        file = self.folder / (port or "none")
        argv = list(argv) + ([f"--port_file={file}"] if port else [])
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                   text=True)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        if not port:
            return process, None
        end = time.monotonic() + PATIENCE
        while not file.exists() and process.poll() is None and time.monotonic() < end:
            threading.Event().wait(0.01)
        self.assertTrue(file.exists(), "the program did not say where it listens")
        return process, file.read_text().strip()


class TrainTest(Case):
    ELEMENTS = (200, 7)  # the second is padded to 16

    def hello(self, update, rank):
        plan = plan_pb2.Plan(world_size=2, chunk_bytes=256)
        for i, elements in enumerate(self.ELEMENTS):
            plan.tensors.add(name=f"t{i}", sizes=[elements], strides=[1])
        plan.buckets.add(tensors=[0, 1])
        plan.optimizer.kind = "sgd"
        plan.optimizer.groups.add(lr_scale=1, momentum=0.5, beta1=0.9, beta2=0.999, eps=1e-8)
        self.cut = Cut(208 + 16, 2, 256)
        hello = parameter_server_pb2.Hello(run_id="from python", rank=rank, address="python", plan=plan)
        terms = hello.terms
        terms.world_size, terms.connections, terms.credit = 2, 1, 64
        terms.weights.append(1)
        terms.update_site = parameter_server_pb2.UpdateSite.Value(update)
        terms.fingerprint = fingerprint(plan, [self.cut])
        return hello

    def exchange(self, workers, step, gradients):
        for rank, worker in enumerate(workers):
            for slot in self.cut.push_order(rank):
                begin, end = self.cut.range(slot)
                worker.send("PUSH", struct.pack(f"<{end - begin}f", *gradients[rank][begin:end]), slot=slot, step=step,
                            lr=0.5, inverse_loss_scale=1)
        results = []
        for worker in workers:
            result = [None] * self.cut.elements
            for _ in self.cut.push_order(0):
                pull = worker.hear("PULL")
                self.assertEqual(pull.header.step, step)
                begin, end = self.cut.range(pull.header.slot)
                result[begin:end] = struct.unpack(f"<{end - begin}f", pull.payload)
            results.append(result)
        self.assertEqual(results[0], results[1])
        return results[0]

    def train(self, update):
        server, address = self.start(SERVER, "--listen=127.0.0.1:0", port=f"port_{update}")
        metadata = [("gradsync-run-bin", b"from python")]
        workers = [Stream(address, metadata) for _ in range(2)]
        for rank, worker in enumerate(workers):
            worker.send("HELLO", self.hello(update, rank).SerializeToString())
        for worker in workers:
            worker.hear("HELLO")
        real = [i < 200 or 208 <= i < 215 for i in range(self.cut.elements)]
        parameters = [float(i % 9) if real[i] else 0.0 for i in range(self.cut.elements)]
        for slot in self.cut.push_order(0):
            begin, end = self.cut.range(slot)
            workers[0].send("PARAMETERS", struct.pack(f"<{end - begin}f", *parameters[begin:end]), slot=slot)
        for _ in self.cut.push_order(0):
            self.assertEqual(workers[0].hear("PARAMETERS").payload, b"")
            header = (frame := workers[1].hear("PARAMETERS")).header
            begin, end = self.cut.range(header.slot)
            self.assertEqual(frame.payload, struct.pack(f"<{end - begin}f", *parameters[begin:end]))
        # Small integers and powers of two, so that every intermediate value is exact in fp32.
        numbers = random.Random(19)
        momentum = [None] * self.cut.elements
        for step in (1, 2, 3):
            gradients = [[float(numbers.randrange(-8, 8)) if real[i] else 0.0 for i in range(self.cut.elements)]
                         for _ in workers]
            mean = [(a + b) / 2 for a, b in zip(*gradients)]
            found = self.exchange(workers, step, gradients)
            if update == "WORKER":
                self.assertEqual(found, mean)
                continue
            momentum = [g if m is None else 0.5 * m + g for m, g in zip(momentum, mean)]
            parameters = [p - 0.5 * m for p, m in zip(parameters, momentum)]
            self.assertEqual(found, parameters)
        for worker in workers:
            worker.send("GOODBYE")
            worker.frames.put(None)
        for worker in workers:
            worker.hear("GOODBYE")
        self.assertEqual(server.wait(PATIENCE), 0)
        for worker in workers:
            worker.close()

    def test_means_come_back_with_the_bits_expected(self):
        self.train("WORKER")

    def test_parameters_are_updated_with_momentum(self):
        self.train("OWNER")

    def test_a_loss_scale_that_is_not_set_is_refused_instead_of_a_mean_of_zero(self):
        server, address = self.start(SERVER, "--listen=127.0.0.1:0", port="port")
        workers = [Stream(address, [("gradsync-run-bin", b"from python")]) for _ in range(2)]
        for rank, worker in enumerate(workers):
            worker.send("HELLO", self.hello("WORKER", rank).SerializeToString())
        for worker in workers:
            worker.hear("HELLO")
        slot = next(iter(self.cut.push_order(0)))
        begin, end = self.cut.range(slot)
        workers[0].send("PUSH", bytes(4 * (end - begin)), slot=slot, step=1, lr=0.5)
        self.assertIn("inverse_loss_scale", workers[1].outcome())
        self.assertEqual(server.wait(PATIENCE), 1)
        for worker in workers:
            worker.close()


if __name__ == "__main__":
    if grpc is None:
        print("skipped: python3-grpcio is not installed (tools/setup)")
        sys.exit(0)
    frame_pb2, parameter_server_pb2, plan_pb2 = compile_protos()
    unittest.main(verbosity=2)
