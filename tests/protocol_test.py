#!/usr/bin/python3
"""A client written from proto/ and docs/internals/protocol.md alone: it trains, and it attacks a job that trains.

    bazel test //tests:protocol_test --test_output=all --test_env=MUTE_STREAMS=2000

Skipped where Debian's python3-grpcio or protoc is missing (tools/setup installs them)."""
import functools
import hashlib
import importlib
import os
import pathlib
import queue
import random
import re
import resource
import socket
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
WORKER = str(ROOT / "worker/worker")
SERVER = str(ROOT / "ps_server/ps_server")
EXCHANGE = "/gradsync.proto.FrameLink/Exchange"
STORE = "/gradsync.proto.Rendezvous/"
PATIENCE = 60
# Half of them connections on which nothing is said, half of them calls.
MUTE_STREAMS = int(os.environ.get("MUTE_STREAMS", 200))
MIB = 1 << 20
# With address sanitizer: freed memory that is kept back counts as resident. Adds to what the caller asked for.
SMALL_QUARANTINE = ":".join(filter(None, (os.environ.get("ASAN_OPTIONS"), "quarantine_size_mb=8")))


@functools.lru_cache(maxsize=None)
def compile_protos():
    """Python's modules of proto/, made by protoc."""
    folder = tempfile.mkdtemp()
    names = ["challenge", "frame", "frame_link", "parameter_server", "plan", "rendezvous"]
    subprocess.run(["protoc", "-I.", f"--python_out={folder}"] + [f"proto/{name}.proto" for name in names], cwd=ROOT,
                   check=True)
    sys.path.insert(0, folder)
    return {name: importlib.import_module(f"proto.{name}_pb2") for name in names}


def setUpModule():
    global frame_pb2, parameter_server_pb2, plan_pb2, rendezvous_pb2
    if grpc is None:
        raise unittest.SkipTest("python3-grpcio is not installed (tools/setup)")
    modules = compile_protos()
    frame_pb2, parameter_server_pb2 = modules["frame"], modules["parameter_server"]
    plan_pb2, rendezvous_pb2 = modules["plan"], modules["rendezvous"]


def number(value):
    return "%.17g" % value


class Cut:
    """Where the chunks of a bucket are: docs/internals/protocol.md, "Chunks"."""

    def __init__(self, elements, workers, chunk_bytes):
        self.elements, self.workers = elements, workers
        self.stripes = -(-elements // (workers * (chunk_bytes // 4)))
        even = -(-elements // (self.stripes * workers))
        self.size = -(-max(even, chunk_bytes // 4 // 16) // 16) * 16

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
        self.coming = self.heard()

    @staticmethod
    def frame(kind, payload=b"", **fields):
        frame = frame_pb2.Frame(payload=payload)
        frame.header.kind = frame_pb2.FrameHeader.Kind.Value(kind)
        for name, value in fields.items():
            setattr(frame.header, name, value)
        return frame

    def send(self, kind, payload=b"", **fields):
        self.send_together([self.frame(kind, payload, **fields)])

    def send_together(self, frames):
        """In one message."""
        frames[0].next.extend(frames[1:])
        self.frames.put(frames[0].SerializeToString())

    def heard(self):
        """Frames as they come, one in a message or several."""
        for frame in self.call:
            yield frame
            yield from frame.next

    def hear(self, *kinds):
        """The next frame, of which CREDIT is none; of one of these kinds."""
        for frame in self.coming:
            name = frame_pb2.FrameHeader.Kind.Name(frame.header.kind)
            if name == "CREDIT":
                continue
            assert name in kinds, f"expected {kinds}, found {frame.header}"
            return frame
        raise AssertionError(f"expected {kinds}, found the end")

    def outcome(self):
        """How a call that should be refused ends: a status, or FAILED."""
        try:
            for frame in self.coming:
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
                                   text=True, env=dict(os.environ, ASAN_OPTIONS=SMALL_QUARANTINE))
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
            pushes = []
            for slot in self.cut.push_order(rank):
                begin, end = self.cut.range(slot)
                values = struct.pack(f"<{end - begin}f", *gradients[rank][begin:end])
                pushes.append(worker.frame("PUSH", values, slot=slot, step=step, lr=0.5, inverse_loss_scale=1))
            # One rank's in one message, the other's one by one.
            for together in [pushes] if rank == 0 else [[push] for push in pushes]:
                worker.send_together(together)
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

    def contradict(self, address, update):
        """The server goes by the first hello; none of these may be it."""
        for run, field, value in ((b"from python", "fingerprint", "0" * 16), (b"from python", "world_size", 3),
                                  (b"other", None, None)):
            hello = self.hello(update, 0)
            if field:
                setattr(hello.terms, field, value)
            stranger = Stream(address, [("gradsync-run-bin", run)])
            stranger.send("HELLO", hello.SerializeToString())
            outcome = stranger.outcome()
            self.assertTrue(outcome.startswith("FAILED 3 hello"), outcome)

    def train(self, update):
        server, address = self.start(SERVER, "--listen=127.0.0.1:0", port=f"port_{update}")
        metadata = [("gradsync-run-bin", b"from python")]
        self.contradict(address, update)
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
        self.part(server, workers)

    def part(self, server, workers):
        """All workers leave in good order, and the server with them."""
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

    def test_a_message_does_not_become_many_times_its_size(self):
        server, address = self.start(SERVER, "--listen=127.0.0.1:0", port="port")
        metadata = [("gradsync-run-bin", b"from python")]

        def message(frame, entry):
            """A message of 24 MiB whose frame goes on with so many entries."""
            return frame.SerializeToString() + entry * (24 * MIB // len(entry))

        def hello(entry):
            plan = message(plan_pb2.Plan(), entry)
            # A second plan is merged with the first.
            length = bytearray()
            rest = len(plan)
            while rest >= 128:
                length.append(rest % 128 | 128)
                rest //= 128
            length.append(rest)
            return Stream.frame("HELLO", self.hello("OWNER", 0).SerializeToString() + b"\x3a" + bytes(length) +
                                plan).SerializeToString()

        mute = Stream.frame("PUSH")
        before = resident(server.pid)
        # Frames behind the first, fields that nobody knows, tensors and buckets.
        attacks = [(message(mute, entry), "DATA_LOSS")
                   for entry in (b"\x1a\x02\x0a\x00", b"\x1a\x00", b"\x0a\x02\x7a\x00", b"\x72\x00")]
        attacks += [(hello(entry), "FAILED 8 hello") for entry in (b"\x0a\x00", b"\x12\x00")]
        for sent, expected in attacks:
            stranger = Stream(address, metadata)
            stranger.frames.put(sent)
            outcome = stranger.outcome()
            self.assertTrue(outcome.startswith(expected), outcome)
            stranger.close()
        self.assertLess(resident(server.pid, "VmHWM") - before, 256 * MIB)
        workers = [Stream(address, metadata) for _ in range(2)]
        for rank, worker in enumerate(workers):
            worker.send("HELLO", self.hello("OWNER", rank).SerializeToString())
        for worker in workers:
            worker.hear("HELLO")
        self.part(server, workers)

    def large_hello(self, elements, tensors, chunk_bytes, weights):
        """Of one worker, for a plan of one bucket."""
        hello = self.hello("OWNER", 0)
        plan, terms = hello.plan, hello.terms
        del plan.tensors[:], plan.buckets[:], terms.weights[:]
        for i in range(tensors):
            plan.tensors.add(name=f"t{i}", sizes=[elements], strides=[1])
        plan.buckets.add(tensors=range(tensors))
        plan.world_size, plan.chunk_bytes, terms.world_size = 1, chunk_bytes, 1
        terms.weights.extend(weights)
        terms.fingerprint = fingerprint(plan, [Cut(tensors * -(-elements // 16) * 16, 1, chunk_bytes)])
        return hello.SerializeToString()

    def test_a_hello_does_not_become_many_times_its_work(self):
        # A look at each of 65,536 weights for each of a million chunks took ten minutes, and so did one at each of
        # 160,000 tensors for as many chunks.
        hellos = [self.large_hello(16 << 20, 1, 64, [1] * 65536),
                  self.large_hello(16 << 20, 1, 64, range(1, 65537)),
                  self.large_hello(16, 160000, 64, [1])]
        for i, hello in enumerate(hellos):
            server, address = self.start(SERVER, "--listen=127.0.0.1:0", "--max_memory=4GiB", port=f"port_{i}")
            worker = Stream(address, [("gradsync-run-bin", b"from python")])
            worker.send("HELLO", hello)
            worker.hear("HELLO")
            self.part(server, [worker])

    def test_a_server_ends_when_it_is_told_to_while_a_hello_is_read(self):
        # It was answered when the work was done, which took minutes.
        server, address = self.start(SERVER, "--listen=127.0.0.1:0", "--max_memory=4GiB", port="port")
        strangers = [Stream(address, [("gradsync-run-bin", b"from python")]) for _ in range(4)]
        hello = self.large_hello(16 << 20, 1, 64, range(1, 65537))
        for stranger in strangers:
            stranger.send("HELLO", hello)
        server.terminate()
        server.wait(PATIENCE)
        for stranger in strangers:
            stranger.close()

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


def resident(pid, field="VmRSS"):
    return int(re.search(field + r":\s+(\d+) kB", pathlib.Path(f"/proc/{pid}/status").read_text()).group(1)) * 1024


def hash_of(case, processes):
    """What a job that ends well says of its parameters."""
    for process in processes:
        text, _ = process.communicate(timeout=10 * PATIENCE)
        case.assertEqual(process.returncode, 0, text)
        found = re.findall(r"params_sha256 (\w{64})", text)
        if found:
            sha = found[0]
    return sha


class AttackTest(Case):
    FLAGS = ["--model=mlp", "--data=synthetic", "--batch_size=4", "--topology=ps", "--link=grpc", "--num_servers=1",
             "--world_size=2", "--seed=19"]

    def job(self, name, steps):
        """Two workers and a server; returns the processes and the addresses of store and server."""
        flags = [WORKER] + self.FLAGS + [f"--steps={steps}"]
        first, store = self.start(*flags, "--rank=0", "--master=127.0.0.1:0", port=f"{name}_store")
        server, address = self.start(SERVER, f"--master={store}", port=f"{name}_server")
        second, _ = self.start(*flags, "--rank=1", f"--master={store}")
        return (first, server, second), store, address

    def streams(self):
        """(metadata, messages) that a stranger may open a stream with."""
        hello = parameter_server_pb2.Hello(run_id="job", rank=0)
        hello.terms.world_size, hello.terms.connections, hello.terms.credit = 1, 1, 2
        hello.terms.weights.append(1)
        hello.terms.update_site = parameter_server_pb2.OWNER
        hellos = [b"", b"\xff\xff\xff", hello.SerializeToString()]
        for field, values in (("rank", (-1, 1, 2**31 - 1)), ("run_id", ("other", "x" * (10 << 20)))):
            for value in values:
                changed = parameter_server_pb2.Hello()
                changed.CopyFrom(hello)
                setattr(changed, field, value)
                hellos.append(changed.SerializeToString())
        for field, value in (("world_size", 2**31 - 1), ("world_size", 65536), ("connections", -5), ("credit", 2**30),
                             ("consistency", "ssp:" + "9" * 1000)):
            changed = parameter_server_pb2.Hello()
            changed.CopyFrom(hello)
            setattr(changed.terms, field, value)
            hellos.append(changed.SerializeToString())
        messages = []
        for payload in hellos:
            frame = frame_pb2.Frame(payload=payload)
            frame.header.kind = frame_pb2.FrameHeader.HELLO
            messages.append([frame.SerializeToString()])
        messages += [[b"\xff" * 100], [b""], [bytes(32 << 20)]]
        for kind in ("PUSH", "FAILED", "GOODBYE", "PARAMETERS", "STATE_REQUEST", "HOST"):
            frame = frame_pb2.Frame()
            frame.header.kind = frame_pb2.FrameHeader.Kind.Value(kind)
            messages.append([frame.SerializeToString()] * 3)
        proofs = [[], [("gradsync-run-bin", b"other")], [("gradsync-run-bin", b"job")],
                  [("gradsync-run-bin", b"job"), ("gradsync-key", "0" * 32)]]
        return [(proof, sent) for proof in proofs for sent in messages]

    def calls(self):
        """(method, metadata, request) of a store that must not answer."""
        rpc = rendezvous_pb2
        requests = [
            ("Set", rpc.SetRequest(key=b"job/0/failure", value=b"x")), ("Fail", rpc.FailRequest(reason=b"x")),
            ("Fail", rpc.FailRequest(prefix=b"job/0/", reason=b"x")), ("Get", rpc.GetRequest(key=b"run", timeout_us=0)),
            ("AllGather", rpc.AllGatherRequest(key=b"k", world_size=2**31 - 1, timeout_us=0)),
            ("SetIfAbsent", rpc.SetRequest(key=b"job/0/server/0", value=b"x" * (32 << 20))),
            ("Join", rpc.JoinRequest(run_id=b"job", rank=1)), ("Nothing", rpc.GetRequest()),
        ]
        messages = [(method, request.SerializeToString()) for method, request in requests]
        messages += [(method, b"\xff" * 50) for method in ("Set", "Get", "Join", "AllGather", "Fail")]
        calls = [(method, proof, request) for proof in ([], [("gradsync-key", "0" * 32)])
                 for method, request in messages]
        joins = [
            rpc.JoinRequest(run_id=b"job", rank=1, nonce=b"n"), rpc.JoinRequest(run_id=b"job", rank=-1),
            rpc.JoinRequest(run_id=b"job", rank=0), rpc.JoinRequest(run_id=b"job", rank=2**31 - 1),
            rpc.JoinRequest(run_id=b"x" * 4000, rank=1), rpc.JoinRequest(run_id=b"job", rank=1, attempt=1),
            rpc.JoinRequest(server=True, attempt=-1, nonce=b"n"),
        ]
        return calls + [("Join", [("gradsync-join-bin", join)], bytes(8 << 20)) for join in
                        [join.SerializeToString() for join in joins] + [b"\xff" * 50]]

    def test_malformed_calls_and_mute_streams_leave_a_job_alone(self):
        steps = 2400 + MUTE_STREAMS
        undisturbed, _, _ = self.job("before", steps)
        expected = hash_of(self, undisturbed)
        processes, store, address = self.job("job", steps)
        first, server, second = processes
        # The group is complete when rank 0 has told of a step.
        told = first.stdout.readline()
        while told and "step " not in told:
            told = first.stdout.readline()
        before = {process.pid: resident(process.pid) for process in (first, server)}

        streams, calls = self.streams(), self.calls()
        random.Random(19).shuffle(streams)
        self.assertGreaterEqual(len(streams) + len(calls), 100)
        for proof, messages in streams:
            stream = Stream(address, proof)
            for message in messages:
                stream.frames.put(message)
            outcome = stream.outcome()
            self.assertRegex(outcome, r"^(PERMISSION_DENIED|INVALID_ARGUMENT|FAILED|DATA_LOSS|RESOURCE_EXHAUSTED) ",
                             (proof, messages[0][:50]))
            self.assertLess(len(outcome), 5000)
            stream.close()
        channel = grpc.insecure_channel(store, options=[("grpc.max_send_message_length", -1)])
        for method, proof, request in calls:
            call = channel.unary_unary(STORE + method, request_serializer=None, response_deserializer=None)
            with self.assertRaises(grpc.RpcError, msg=(method, request[:50])) as refused:
                call(request, metadata=proof, timeout=PATIENCE)
            self.assertNotIn(refused.exception.code(), (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED),
                             (method, refused.exception.details()))
        channel.close()

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        ends = [(host, int(port)) for host, port in (each.rsplit(":", 1) for each in (address, store))]
        mute = [socket.create_connection(ends[i % 2], PATIENCE) for i in range(MUTE_STREAMS // 2)]
        channels = [grpc.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)]) for _ in range(4)]
        quiet = threading.Event()
        open_calls = []
        for i in range(MUTE_STREAMS // 2):
            method = channels[i % 4].stream_stream(EXCHANGE)
            open_calls.append(method(iter(lambda: quiet.wait(PATIENCE) and None, None),
                                     metadata=[("gradsync-run-bin", b"job")], timeout=PATIENCE))
        for call in open_calls:
            with self.assertRaises(grpc.RpcError) as refused:
                next(call)
            self.assertEqual(refused.exception.code(), grpc.StatusCode.PERMISSION_DENIED)
        self.assertIsNone(first.poll(), "the job was over before the attack was: give it more steps")
        for process in (first, server):
            grown = max(resident(process.pid), resident(process.pid, "VmHWM")) - before[process.pid]
            print(f"process {process.pid}: {grown / MIB:.1f} MiB more resident memory")
            self.assertLess(grown, 64 * MIB)
        quiet.set()
        self.assertEqual(hash_of(self, processes), expected)
        for each in mute:
            each.close()

    def test_the_same_command_started_twice_is_refused_alone(self):
        # The job waits for rank 2 until the strays have ended.
        flags = [WORKER] + self.FLAGS + ["--steps=20", "--world_size=3"]
        first, store = self.start(*flags, "--rank=0", "--master=127.0.0.1:0", port="store")
        server, _ = self.start(SERVER, f"--master={store}", port="server")
        twins = [self.start(*flags, "--rank=1", f"--master={store}")[0] for _ in range(2)]
        stray, _ = self.start(SERVER, f"--master={store}")
        text, _ = stray.communicate(timeout=PATIENCE)
        self.assertEqual(stray.returncode, 2, text)
        self.assertIn("expects 1 servers, which have come already", text)
        end = time.monotonic() + PATIENCE
        while all(twin.poll() is None for twin in twins) and time.monotonic() < end:
            threading.Event().wait(0.01)
        refused, taken = sorted(twins, key=lambda twin: twin.poll() is None)
        text, _ = refused.communicate(timeout=PATIENCE)
        self.assertNotEqual(refused.returncode, 0)
        self.assertIn("rank 1 of run \"job\" has come already", text)
        last, _ = self.start(*flags, "--rank=2", f"--master={store}")
        hash_of(self, [first, server, taken, last])


if __name__ == "__main__":
    unittest.main(verbosity=2)
