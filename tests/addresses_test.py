#!/usr/bin/env python3
"""Where processes of a job look for each other: names, addresses, interfaces and ports as hosts and launchers have them.

Rank 0 listened at one address of its host, where its own name often does not lead: Debian's /etc/hosts leads it to 127.0.1.1.
Hosts here are network namespaces of one machine with a file for /etc/hosts each.
"""
import os
import pathlib
import re
import signal
import subprocess
import tempfile
import time
import unittest

WORKER = os.path.abspath("worker/worker")  # from the root of the runfiles, where tests start
SERVER = os.path.abspath("ps_server/ps_server")
TRAIN = ["--model=mlp", "--batch_size=4", "--steps=2", "--threads=1", "--log_every=0"]
PATIENCE = 100
LAUNCHERS = ("RANK", "WORLD_SIZE", "MASTER_", "LOCAL_", "SLURM_", "PMI", "OMPI_", "MPI_", "TORCHELASTIC_", "GRADSYNC_")
SECRET = {"GRADSYNC_JOB_KEY": "0123456789abcdef"}


def clean_environment(extra):
    own = {name: value for name, value in os.environ.items() if not name.startswith(LAUNCHERS)}
    return {**own, **extra}


def mpich(rank, size=2):
    return {"PMI_RANK": str(rank), "PMI_SIZE": str(size), "MPI_LOCALRANKID": str(rank), "MPI_LOCALNRANKS": str(size)}


def torchrun(rank, master, size=2):
    return {"RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_ADDR": master, "MASTER_PORT": "7001"}


def interface(name, address):
    """A line of shell that makes an interface which is up."""
    return f"ip link add {name} type veth peer name peer-{name} && ip link set peer-{name} up && ip link set {name} up && " \
        f"ip address add {address} dev {name}"


class Host:
    """A network namespace with names of its own; `setup` is lines of shell, run inside."""

    def __init__(self, folder, name, hosts, setup="", peer=None):
        self.hosts = folder / f"hosts.{name}"
        self.write_hosts(hosts)
        self.output = folder / f"host.{name}"
        no_dns = folder / "resolv.conf"
        no_dns.write_text("")  # asks this host, where no server is
        lines = ["set -e", "ip link set lo up", f"hostname {name}", f"mount --bind {self.hosts} /etc/hosts",
                 f"mount --bind {no_dns} /etc/resolv.conf"]
        if peer is not None:
            lines += [f"ip link add eth0 type veth peer name eth0 netns {peer.process.pid}", "ip link set eth0 up",
                      f"nsenter -t {peer.process.pid} -n ip link set eth0 up"]
        lines += [setup, "echo up", "exec sleep infinity"]
        with self.output.open("w") as output:
            self.process = subprocess.Popen(["unshare", "--net", "--mount", "--uts", "sh", "-c", "\n".join(lines)],
                                            stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
        deadline = time.monotonic() + PATIENCE
        while self.process.poll() is None and "up\n" not in self.output.read_text():
            assert time.monotonic() < deadline, self.output.read_text()
            time.sleep(0.01)
        assert self.process.poll() is None, self.output.read_text()

    def write_hosts(self, text):
        self.hosts.write_text("127.0.0.1 localhost\n::1 localhost ip6-localhost\n" + text)

    def inside(self, *argv):
        return ["nsenter", "-t", str(self.process.pid), "--net", "--mount", "--uts", *argv]

    def end(self):
        self.process.kill()
        self.process.wait()


def why_not():
    found = subprocess.run(["unshare", "--net", "--mount", "--uts", "sh", "-c",
                            "ip link set lo up && ip link add veth0 type veth peer name veth1 && mount --bind /etc/hosts /etc/hosts"],
                           stdin=subprocess.DEVNULL, capture_output=True, text=True)
    return "" if found.returncode == 0 else f"namespaces may not be made here: {found.stderr.strip()}"


@unittest.skipIf(why_not(), why_not())
class AddressesTest(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)
        self.outputs = {}  # process -> file with what it has printed
        self.scripts = []  # files with what ranks of MPICH's launcher have printed
        self.addCleanup(self.end)

    def end(self):
        for process in self.outputs:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()

    def host(self, name, hosts, setup="", peer=None):
        host = Host(self.folder, name, hosts, setup, peer)
        self.addCleanup(host.end)
        return host

    def start(self, host, *argv, **environment):
        path = self.folder / f"output{len(self.outputs)}"
        with path.open("w") as file:
            process = subprocess.Popen(host.inside(*argv), env=clean_environment(environment), stdin=subprocess.DEVNULL,
                                       stdout=file, stderr=subprocess.STDOUT, start_new_session=True)
        self.outputs[process] = path
        return process

    def rank(self, host, rank, *flags, size=2, **environment):
        given = {flag.split("=")[0] for flag in flags}
        usual = [flag for flag in ("--topology=ring", "--timeout=60s") if flag.split("=")[0] not in given]
        return self.start(host, WORKER, f"--rank={rank}", f"--world_size={size}", *usual, *TRAIN, *flags, **environment)

    def output(self, process):
        return self.outputs[process].read_text()

    def finish(self, process):
        process.wait(timeout=PATIENCE)
        return self.output(process)

    def wait_for(self, what, condition):
        deadline = time.monotonic() + PATIENCE
        while not condition():
            self.assertLess(time.monotonic(), deadline, what)
            time.sleep(0.01)

    def wait_until_listening(self, host, port):
        self.wait_for(f"a listener at port {port}", lambda: f":{port} " in subprocess.run(
            host.inside("ss", "-tln"), capture_output=True, check=True, text=True).stdout)

    def wait_for_text(self, process, text):
        self.wait_for(text, lambda: text in self.output(process) or process.poll() is not None)
        self.assertIn(text, self.output(process))

    def assert_all_end_well(self, *processes):
        for process in processes:
            output = self.finish(process)
            self.assertEqual(process.returncode, 0, "\n".join(map(self.output, processes)))
        return output

    def assert_refused(self, process, *words):
        output = self.finish(process)
        self.assertEqual(process.returncode, 2, output)
        self.assertEqual(output.count("\n"), 1, output)
        for word in words:
            self.assertIn(word, output)

    # Debian's installer, and Kubernetes with the host's network.
    def test_ranks_and_a_server_meet_on_a_host_whose_name_is_a_loopback_name(self):
        for address in ("127.0.1.1", "127.0.0.1"):
            with self.subTest(address):
                box = self.host("box", f"{address} box\n", interface("eth0", "10.7.0.1/24"))
                flags = ["--master=box:7001", "--topology=ps", "--num_servers=1"]
                self.assert_all_end_well(*(self.rank(box, rank, *flags, **SECRET) for rank in range(2)),
                                         self.start(box, SERVER, "--master=box:7001", **SECRET))
                # The launchers' ways to say it.
                self.assert_all_end_well(*(self.start(box, WORKER, "--topology=ring", *TRAIN, **SECRET, **torchrun(rank, "box"))
                                           for rank in range(2)))
                slurm = {"SLURM_NTASKS": "2", "SLURM_JOB_NODELIST": "box", "SLURM_JOB_ID": "1", "SLURM_STEP_ID": "0"}
                self.assert_all_end_well(*(self.start(box, WORKER, "--topology=ring", *TRAIN, **SECRET, **slurm,
                                                      SLURM_PROCID=str(rank)) for rank in range(2)))
                # Without a secret nothing listens where other hosts reach it.
                ranks = [self.rank(box, rank, "--master=box:7001") for rank in range(2)]
                self.assert_all_end_well(*ranks)
                self.assertIn("rank 0 listens for processes of this host alone", self.output(ranks[0]))

    def test_ranks_and_a_server_meet_at_localhost_where_no_file_has_it(self):
        """It was "not found", though there is no other host that it may mean."""
        box = self.host("box", "")
        box.hosts.write_text("")
        for master in ("localhost:7001", "a.localhost:7001"):
            with self.subTest(master):
                flags = [f"--master={master}", "--topology=ps", "--num_servers=1"]
                self.assert_all_end_well(*(self.rank(box, rank, *flags) for rank in range(2)),
                                         self.start(box, SERVER, f"--master={master}"))

    def test_a_loopback_address_that_is_written_as_ipv6_needs_no_secret(self):
        box = self.host("box", "")
        flags = ["--master=[::ffff:127.0.0.1]:7011", "--topology=ps", "--num_servers=1"]
        self.assert_all_end_well(*(self.rank(box, rank, *flags) for rank in range(2)), self.start(box, SERVER, flags[0]))

    def two_hosts(self, names_a, names_b, more=""):
        """a is 10.7.0.1 and 10.7.0.2, b is 10.7.0.3."""
        a = self.host("a", names_a)
        b = self.host("b", names_b, "ip address add 10.7.0.3/24 dev eth0", peer=a)
        subprocess.run(a.inside("sh", "-c", "ip address add 10.7.0.1/24 dev eth0 && ip address add 10.7.0.2/24 dev eth0\n"
                                "ip route add default via 10.7.0.3\n" + more), check=True)
        return a, b

    def test_another_host_finds_rank_zero_where_its_own_name_leads_to_loopback(self):
        a, b = self.two_hosts("127.0.1.1 a\n", "10.7.0.2 a\n")
        self.assert_all_end_well(*(self.rank(host, rank, "--master=a:7001", "--link=tcp", size=3, **SECRET)
                                   for rank, host in enumerate((a, b, a))))
        # An interface that others do not have is not where they look for the store.
        self.assert_all_end_well(self.rank(a, 0, "--master=a:7001", "--interface=lo", "--topology=local", **SECRET),
                                 self.rank(b, 1, "--master=a:7001", "--topology=local", **SECRET))
        # Who may not listen there is told so at once.
        self.assert_refused(self.rank(b, 1, "--master=a:7001"), "--insecure", "10.7.0.3")

    def test_rank_zero_listens_at_a_secondary_address_and_at_one_of_an_interface_that_others_do_not_have(self):
        a, b = self.two_hosts("", "", interface("eth1", "10.8.0.1/24"))
        for flags in (["--master=10.7.0.2:7001"], ["--master=127.0.1.1:7001"], ["--master=[::1]:7001"],
                      ["--master=0.0.0.0:7001"], ["--master=10.7.0.1:7001", "--interface=eth1"]):
            with self.subTest(flags):
                self.assert_all_end_well(*(self.rank(a, rank, *flags, **SECRET) for rank in range(2)))
        for master in ("10.7.0.1", "10.7.0.2"):
            with self.subTest(master):
                self.assert_all_end_well(*(self.rank(host, rank, f"--master={master}:7001", **SECRET)
                                           for rank, host in enumerate((a, b))))

    def test_the_default_routes_interface_wins(self):
        a, b = self.two_hosts("127.0.1.1 a\n", "10.7.0.1 a\n", interface("docker0", "172.17.0.1/16"))
        port_file = self.folder / "master"
        self.assert_all_end_well(self.rank(a, 0, "--master=a:7001", f"--port_file={port_file}", **SECRET),
                                 self.rank(b, 1, "--master=a:7001", **SECRET))
        self.assertEqual(port_file.read_text(), "10.7.0.1:7001\n")
        # Nor does a bridge win where there is no default route.
        subprocess.run(a.inside("ip", "route", "del", "default"), check=True)
        port_file.unlink()
        self.assert_all_end_well(self.rank(a, 0, "--master=a:7001", f"--port_file={port_file}", **SECRET),
                                 self.rank(b, 1, "--master=a:7001", **SECRET))
        self.assertEqual(port_file.read_text(), "10.7.0.1:7001\n")

    def test_ranks_meet_by_link_local_addresses(self):
        a, b = self.two_hosts("", "")
        shown = subprocess.run(a.inside("ip", "-6", "address", "show", "dev", "eth0", "scope", "link"), check=True,
                               capture_output=True, text=True).stdout
        address = re.search(r"inet6 (fe80::[0-9a-f:]+)/", shown)[1]
        for host in (a, b):
            self.wait_for("an address that may be used", lambda host=host: not subprocess.run(
                host.inside("ip", "-6", "address", "show", "tentative"), check=True, capture_output=True).stdout)
        self.assert_all_end_well(*(self.start(host, WORKER, "--topology=ring", *TRAIN, **SECRET,
                                              **torchrun(rank, f"{address}%eth0")) for rank, host in enumerate((a, b))))
        self.assert_all_end_well(*(self.start(a, WORKER, "--topology=ring", "--link=tcp", *TRAIN, **SECRET, **torchrun(rank, "[::1]"))
                                   for rank in range(2)))

    def test_an_address_of_another_host_is_refused_on_rank_zero(self):
        a, _ = self.two_hosts("10.7.0.3 elsewhere\n", "")
        for flags in (["--master=10.7.0.3:7001"], ["--master=10.7.0.3:7001", "--interface=eth0"]):
            self.assert_refused(self.rank(a, 0, *flags, **SECRET), "--master", '"10.7.0.3"', "eth0 (10.7.0.1)")
        self.assert_refused(self.rank(a, 0, "--master=[fe80::1]:7001", **SECRET), "fe80::1", "%eth0")
        self.assert_refused(self.rank(a, 0, "--master=elsewhere:7001", **SECRET), '"elsewhere"', "10.7.0.3", "0.0.0.0:7001")

    # Pods of a headless service: a worker ended within two seconds.
    def test_a_name_that_is_not_there_yet_is_waited_for(self):
        a, b = self.two_hosts("127.0.1.1 a\n", "")
        flags = ["--master=a.service:7001", "--topology=ps", "--num_servers=1"]
        processes = [self.rank(b, 1, *flags, **SECRET), self.start(b, SERVER, "--master=a.service:7001", **SECRET)]
        for process in processes:
            self.wait_for_text(process, 'waiting until the host "a.service" of --master is found')
        # Nor does rank 0 know the name, which it needs not.
        processes.append(self.rank(a, 0, *flags, **SECRET))
        self.wait_for_text(processes[-1], 'the host "a.service" of --master is not found')
        b.write_hosts("10.7.0.1 a.service\n")
        self.assert_all_end_well(*processes)

    # They said nothing until --timeout.
    def test_who_comes_before_rank_zero_says_whom_it_waits_for(self):
        a, b = self.two_hosts("", "")
        flags = ["--master=10.7.0.1:7001", "--topology=ps", "--num_servers=1"]
        processes = [self.rank(b, 1, *flags, **SECRET), self.start(b, SERVER, "--master=10.7.0.1:7001", **SECRET)]
        for process in processes:
            self.wait_for_text(process, "waiting for rank 0: no store at 10.7.0.1:7001 yet")
        self.assert_all_end_well(*processes, self.rank(a, 0, *flags, **SECRET))

    def test_a_host_need_not_be_able_to_look_up_its_own_name(self):
        a, _ = self.two_hosts("", "")
        for environment in (SECRET, {}):
            self.assert_all_end_well(*(self.rank(a, rank, "--master=a:7001", **environment) for rank in range(2)))

    def test_time_outs_say_where_rank_zero_listens_or_is_looked_for_and_which_flag_ended_the_wait(self):
        a, b = self.two_hosts("127.0.1.1 a\n", "10.7.0.1 a\n")
        late = ["--master=a:7001", "--timeout=2s"]
        output = self.finish(self.rank(a, 0, *late, **SECRET))
        self.assertIn("rank 1 of 2 has not come", output)
        self.assertIn("--timeout=2s ended the wait; rank 0 listens at [::]:7001", output)
        for process in (self.rank(b, 1, *late, **SECRET), self.start(b, SERVER, *late, **SECRET)):
            output = self.finish(process)
            self.assertEqual(process.returncode, 1, output)
            self.assertIn("--master=a:7001", output)
            self.assertIn("a leads to 10.7.0.1 on this host", output)
            self.assertIn("--timeout=2s ended the wait", output)

    # It said "nobody said hello: the group is not complete in time", and its text was all others' too.
    def test_a_server_that_waits_in_vain_says_who_has_not_come(self):
        a, _ = self.two_hosts("", "")
        flags = ["--master=10.7.0.1:7001", "--topology=ps", "--num_servers=2", "--timeout=100s"]
        rank_0 = self.rank(a, 0, *flags, size=3, **SECRET)
        self.wait_until_listening(a, 7001)
        server = self.start(a, SERVER, "--master=10.7.0.1:7001", "--timeout=4s", **SECRET)
        text = "ranks 1, 2 of 3 have not come to rank 0's store, server 1 of 2 has not registered"
        self.assertIn(text, self.finish(server))
        self.assertIn(text, self.finish(rank_0))

    # It was looked for at the name's first address alone, and its loss was said after --timeout.
    def test_a_stopped_rank_zero_is_known_by_each_of_its_names_addresses(self):
        box = self.host("box", "::1 box\n127.0.0.1 box\n")
        rank_0 = self.rank(box, 0, "--master=127.0.0.1:7001")
        self.wait_until_listening(box, 7001)
        os.kill(rank_0.pid, signal.SIGSTOP)
        output = self.finish(self.rank(box, 1, "--master=box:7001", "--timeout=90s", "--failure_timeout=2s"))
        self.assertIn("rank 0 lost: no sign of life for 2s of the store that it holds at box:7001", output)

    def launcher(self, host, *ranks):
        """Starts ranks as MPICH's launcher does, each by a line of shell; what it returns is the parent of all."""
        script = pathlib.Path(tempfile.mkdtemp(dir=self.folder)) / "mpiexec"
        script.write_text("\n".join(["#!/bin/sh", *ranks, "wait", ""]))
        script.chmod(0o755)
        return self.start(host, str(script))

    def mpich_rank(self, rank, *flags):
        variables = " ".join(f"{name}={value}" for name, value in mpich(rank).items())
        self.scripts.append(path := self.folder / f"rank{len(self.scripts)}")
        command = " ".join([WORKER, "--topology=ring", "--timeout=60s", *TRAIN, *flags])
        return path, f"env {variables} sh -c '{command} >{path} 2>&1; echo exit $? >>{path}' &"

    # Rank 1 of the second trained with rank 0 of the first, and wrote its checkpoint.
    def test_two_jobs_of_mpichs_launcher_on_one_host_never_mix(self):
        box = self.host("box", "127.0.0.1 box\n")
        go = self.folder / "go"
        first = [self.mpich_rank(rank) for rank in range(2)]
        second = [self.mpich_rank(rank) for rank in range(2)]
        one = self.launcher(box, first[0][1], f"until [ -e {go} ]; do sleep 0.05; done", first[1][1])
        self.wait_until_listening(box, 29500)
        self.finish(self.launcher(box, second[0][1], second[1][1]))
        texts = [path.read_text() for path, _ in second]
        self.assertRegex(texts[0], r"process \d+ \(worker\) has port 29500; --master or MASTER_PORT gives this job another port")
        self.assertIn("--run_id: expected the store's", texts[1])
        self.assertIn("--master or MASTER_PORT gives this one a port of its own", texts[1])
        for text in texts:
            self.assertIn("exit 2\n", text)
        go.touch()
        self.finish(one)
        for path, _ in first:
            self.assertIn("exit 0\n", path.read_text())

    def test_one_worker_without_servers_needs_no_store_name_port_or_secret(self):
        box = self.host("box", "", interface("eth0", "10.7.0.1/24"))
        listener = self.start(box, "python3", "-c", "import socket, time\ns = socket.create_server(('', 29500))\n"
                              "print('up', flush=True)\ntime.sleep(1000)")
        self.wait_for_text(listener, "up\n")
        slurm = {"SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURM_JOB_NODELIST": "node7", "SLURM_JOB_ID": "1", "SLURM_STEP_ID": "0"}
        for environment in (slurm, torchrun(0, "node7", 1), torchrun(0, "10.7.0.1", 1), mpich(0, 1)):
            for topology in ("local", "ring", "ps"):
                with self.subTest(f"{environment} {topology}"):
                    self.assert_all_end_well(self.start(box, WORKER, f"--topology={topology}", *TRAIN, **environment))
        self.assert_all_end_well(self.start(box, WORKER, "--master=node7:7001", "--topology=ring", *TRAIN))


if __name__ == "__main__":
    unittest.main()
