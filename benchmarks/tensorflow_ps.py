#!/usr/bin/env python3
"""TensorFlow's parameter servers over gRPC, for //benchmarks:peers: real processes that take turns with the other peers.

Parameter servers hold variables, cut into pieces as the partitioners of tf.distribute.ParameterServerStrategy cut them. Each
worker has a graph and a session of its own, as workers of that strategy have in estimators, so that no coordinator stands
between it and its step: it adds its gradients to the variables (assign_add) and reads them back. What goes over the wire is
what goes over it in an exchange by parameter servers: the gradients to the servers, as many bytes back. It is asynchronous:
a worker waits for no other, and reads what has been added by then.

One process starts the others, prints "ready", or "cannot run" and why in one line, and answers each line

  BYTES WARMUP ITERATIONS pieces_per_server=N FOLDER

with "done" or "cannot run". Each worker writes FOLDER/rank.N.json (ExchangeMetrics of
proto/run_record.proto), with the moments, on the host's monotonic clock, at which its steps began and ended. All workers
begin a step at the same moment. CPU seconds are those of a worker, those of the servers are added to worker 0's.

Each step is checked, with the inputs of benchmarks/exchange/exact_input.h: what a worker has read must be what was there
before plus its own gradients plus those of some of the others, piece by piece; and when all have ended the variables must
hold the sum of everything. Ends at end of file.
"""

import argparse
import ctypes
import itertools
import json
import multiprocessing
import os
import signal
import socket
import sys
import time

PATIENCE = 120.0  # seconds for a step of all workers; whoever started this has a shorter one
LEAD = 2e-3  # seconds from the agreement on a start to the start
SUBSETS = 8  # up to so many ranks every subset of contributions is tried

numpy = None
tf = None


class CannotRun(Exception):
    """What was asked for is not to be had here."""


def contribution(rank, step, first, size):
    """FillContribution() of exact_input.h."""
    begin = (rank * 0x85EBCA6B + step * 0xC2B2AE35) & 0xFFFFFFFF
    value = numpy.arange(first, first + size, dtype=numpy.uint32)
    value *= numpy.uint32(2654435769)
    value += numpy.uint32(begin)
    value ^= value >> numpy.uint32(15)
    value *= numpy.uint32(0x2C1B3C6D)
    return (value >> numpy.uint32(24)).astype(numpy.float32) - numpy.float32(128)


def wrong_of(found, before, own, others):
    """Elements of one piece that are no state that it can have had after `own` was added."""
    if len(others) + 1 > SUBSETS:
        return 0
    rest = found - before - own
    least = found.size
    for count in range(len(others) + 1):
        for some in itertools.combinations(others, count):
            least = min(least, int(numpy.count_nonzero(rest != sum(some, numpy.zeros_like(rest)))))
    return least


def cpu_seconds_of(pids):
    total = 0
    for pid in pids:
        with open(f"/proc/{pid}/stat", encoding="ascii") as file:
            fields = file.read().rsplit(")", 1)[1].split()
        total += int(fields[11]) + int(fields[12])
    return total / os.sysconf("SC_CLK_TCK")


def die_with_parent():
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def free_addresses(count):
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    addresses = [f"127.0.0.1:{one.getsockname()[1]}" for one in sockets]
    for one in sockets:
        one.close()
    return addresses


class Exchange:
    """The graph of one worker for one size and one number of pieces."""

    def __init__(self, rank, servers, floats, pieces, target):
        v1 = tf.compat.v1
        self.rank, self.floats = rank, floats
        count = max(1, min(pieces * servers, floats))
        self.bounds = [floats * i // count for i in range(count + 1)]
        name = f"n{floats}_{count}"
        graph = tf.Graph()
        worker = f"/job:worker/task:{rank}"
        self.shared, self.read, own, self.feeds, fill, steps = [], [], [], [], [], []
        with graph.as_default():
            for i in range(count):
                size = self.bounds[i + 1] - self.bounds[i]
                server = f"/job:ps/task:{i % servers}"
                zeros = numpy.zeros(size, numpy.float32)
                with tf.device(server):
                    variable = v1.get_variable(f"{name}_{i}", initializer=tf.zeros(size), use_resource=True)
                with tf.device(worker):
                    gradient = v1.get_variable(f"{name}_{i}_gradient{rank}", initializer=tf.zeros(size), use_resource=True)
                    local = v1.get_variable(f"{name}_{i}_local{rank}", initializer=tf.zeros(size), use_resource=True)
                    feed = v1.placeholder(tf.float32, zeros.shape)
                    fill.append(gradient.assign(feed, read_value=False))
                    pushed = gradient.read_value()
                with tf.device(server):
                    added = variable.assign_add(pushed, read_value=False)
                    with tf.control_dependencies([added]):
                        pulled = variable.read_value()
                with tf.device(worker):
                    steps.append(local.assign(pulled, read_value=False))
                self.shared.append(variable)
                self.feeds.append(feed)
                own += [gradient, local]
                self.read.append(local)
            reset = v1.variables_initializer(self.shared)
            start = v1.variables_initializer(own)
            fill, step = tf.group(*fill), tf.group(*steps)
            self.read = [local.read_value() for local in self.read]
            self.state = [variable.read_value() for variable in self.shared]
        self.session = v1.Session(target, graph=graph)
        self.session.run(start)
        self.reset = self.session.make_callable(reset)
        self.step = self.session.make_callable(step)
        self.fill_op = fill

    def fill(self, values):
        feeds = {feed: values[self.bounds[i] : self.bounds[i + 1]] for i, feed in enumerate(self.feeds)}
        self.session.run(self.fill_op, feeds)

    def wrong(self, before, contributions):
        """What this worker has read in the step."""
        own = contributions[self.rank]
        others = [each for rank, each in enumerate(contributions) if rank != self.rank]
        total = 0
        for i, found in enumerate(self.session.run(self.read)):
            piece = slice(self.bounds[i], self.bounds[i + 1])
            total += wrong_of(found, before[piece], own[piece], [each[piece] for each in others])
        return total

    def wrong_state(self, expected):
        return int(numpy.count_nonzero(numpy.concatenate(self.session.run(self.state)) != expected))


class Worker:
    def __init__(self, rank, args, target, server_pids, barrier, start):
        self.rank, self.args, self.target, self.server_pids = rank, args, target, server_pids
        self.barrier, self.start = barrier, start
        self.exchanges = {}

    def meet(self):
        self.barrier.wait(PATIENCE)

    def start_together(self):
        self.meet()
        if self.rank == 0:
            self.start.value = time.monotonic() + LEAD
        self.meet()
        time.sleep(max(0.0, self.start.value - time.monotonic() - LEAD / 8))
        while time.monotonic() < self.start.value:
            pass

    def turn(self, floats, warmup, iterations, pieces, folder):
        key = (floats, pieces)
        if key not in self.exchanges:
            self.exchanges[key] = Exchange(self.rank, self.args.servers, floats, pieces, self.target)
        exchange = self.exchanges[key]
        self.meet()
        if self.rank == 0:
            exchange.reset()
        state = numpy.zeros(floats, numpy.float32)
        begins, ends, cpu, wrong = [], [], 0.0, 0
        for number in range(1, warmup + iterations + 1):
            contributions = [contribution(rank, number, 0, floats) for rank in range(self.args.ranks)]
            exchange.fill(contributions[self.rank])
            servers = self.server_pids if self.rank == 0 else []
            self.start_together()
            cpu_before = time.process_time() + cpu_seconds_of(servers)
            begin = time.monotonic()
            exchange.step()
            end = time.monotonic()
            self.meet()
            if number > warmup:
                begins.append(1e6 * begin)
                ends.append(1e6 * end)
                cpu += time.process_time() + cpu_seconds_of(servers) - cpu_before
            wrong += exchange.wrong(state, contributions)
            for each in contributions:
                state += each
            if self.rank == 0:
                wrong += exchange.wrong_state(state)
            self.meet()
        metrics = {
            "rank": self.rank,
            "bytes": 4 * floats,
            "wrong": wrong,
            "cpu_seconds": cpu,
            "begin_us": begins,
            "end_us": ends,
        }
        with open(f"{folder}/rank.{self.rank}.json", "w", encoding="ascii") as file:
            json.dump(metrics, file)


def quiet():
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    os.environ["CUDA_VISIBLE_DEVICES"] = ""


def serve(job, index, cluster):
    tf.compat.v1.disable_eager_execution()
    return tf.compat.v1.train.Server(cluster, job_name=job, task_index=index)


def run_server(index, cluster):
    die_with_parent()
    serve("ps", index, cluster).join()


def run_worker(rank, args, cluster, server_pids, barrier, start, pipe):
    die_with_parent()
    try:
        worker = Worker(rank, args, serve("worker", rank, cluster).target, server_pids, barrier, start)
        pipe.send("")
        while True:
            worker.turn(*pipe.recv())
            pipe.send("")
    except Exception as error:  # the peer's failure is a row of a table that has others
        barrier.abort()
        pipe.send(" ".join(f"worker {rank}: {type(error).__name__}: {error}".split())[:500])
    os._exit(1)


def answers(pipes):
    """The first failure that was not caused by another's; empty when all is well."""
    replies = [pipe.recv() for pipe in pipes]
    failures = sorted(filter(None, replies), key=lambda reply: "BrokenBarrierError" in reply)
    if failures:
        raise CannotRun(failures[0])


def run(args):
    global numpy, tf
    quiet()
    try:
        import numpy
        import tensorflow as tf
    except ImportError as error:
        raise CannotRun(f"{error}; tools/setup --peers installs it") from error
    # Importing takes seconds, and a process that was forked before TensorFlow runs anything need not do it again.
    fork = multiprocessing.get_context("fork")
    addresses = free_addresses(args.servers + args.ranks)
    cluster = tf.train.ClusterSpec({"ps": addresses[: args.servers], "worker": addresses[args.servers :]})
    servers = [fork.Process(target=run_server, args=(i, cluster)) for i in range(args.servers)]
    for server in servers:
        server.start()
    barrier, start = fork.Barrier(args.ranks), fork.Value("d", 0.0, lock=False)
    pipes = []
    for rank in range(args.ranks):
        mine, theirs = fork.Pipe()
        pids = [server.pid for server in servers]
        fork.Process(target=run_worker, args=(rank, args, cluster, pids, barrier, start, theirs)).start()
        theirs.close()
        pipes.append(mine)
    answers(pipes)
    print("ready", flush=True)
    for line in sys.stdin:
        size, warmup, iterations, pieces, folder = line.split()
        pieces = pieces.rpartition("=")[2]
        for pipe in pipes:
            pipe.send((int(size) // 4, int(warmup), int(iterations), int(pieces), folder))
        answers(pipes)
        print("done", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2, help="workers")
    parser.add_argument("--servers", type=int, default=2)
    args = parser.parse_args()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever started this is interrupted too, and ends it
    try:
        run(args)
    except Exception as error:
        reason = str(error) if isinstance(error, CannotRun) else f"{type(error).__name__}: {error}"
        print(f"cannot run: {' '.join(reason.split())[:500]}", flush=True)
        os._exit(1)
    os._exit(0)  # servers end with this process


if __name__ == "__main__":
    main()
