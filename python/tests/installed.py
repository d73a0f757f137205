"""The wheel that //python:wheel leaves, installed into a fresh virtual environment; and processes that run in it."""
import contextlib
import os
import pathlib
import pwd
import re
import subprocess
import tempfile
import unittest

HERE = pathlib.Path(".") if os.path.exists("python/wheel") else pathlib.Path("bazel-bin")
TESTS = pathlib.Path(__file__).absolute().parent
PYTHON = "/usr/bin/python3"

# Where tools/setup --python puts PyTorch.
TORCH = pathlib.Path(pwd.getpwuid(os.getuid()).pw_dir) / ".cache/gradsync/python"


def wheel():
    (found,) = (HERE / "python/wheel").glob("*.whl")
    return found.absolute()


def torch_folder():
    """PyTorch of the version in GRADSYNC_TORCH, or else of the newest one that is there; None: there is none."""
    wanted = os.environ.get("GRADSYNC_TORCH", "*")
    found = sorted(TORCH.glob(f"torch-{wanted}/installed"), key=lambda path: [int(n) for n in re.findall(r"\d+", path.parent.name)])
    return found[-1].parent if found else None


def torch_environment():
    """One with PyTorch; without that the test is skipped."""
    folder = torch_folder()
    if folder is None:
        raise unittest.SkipTest("needs PyTorch of PyPI; tools/setup --python fetches it")
    return Environment(folder)


class Environment:
    """A virtual environment with the wheel in it, and PyTorch if that is given a folder of."""

    def __init__(self, torch=None):
        if wheel().name.endswith("-linux_x86_64.whl"):
            raise unittest.SkipTest("a build with a sanitizer, which Python cannot load")
        if subprocess.run([PYTHON, "-m", "pip", "--version"], capture_output=True, check=False).returncode != 0:
            raise unittest.SkipTest("needs python3-pip; tools/setup installs it")
        self._folder = tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR"))
        self.path = pathlib.Path(self._folder.name)
        self.python = self.path / "bin/python"
        subprocess.run([PYTHON, "-m", "venv", "--without-pip", self.path], check=True)
        subprocess.run([PYTHON, "-m", "pip", "--quiet", "--no-cache-dir", "--disable-pip-version-check", "--python", self.python, "install",
                        "--no-index", "--no-deps", wheel()], check=True, env={**os.environ, "HOME": str(self.path)})
        self.packages = next(self.path.glob("lib/python3.*/site-packages"))
        if torch is not None:
            (self.packages / "torch.pth").write_text(f"{torch}\n")

    def close(self):
        self._folder.cleanup()

    def variables(self, **more):
        """Of this process, but for what says which rank of which job it is."""
        own = {name: value for name, value in os.environ.items()
               if not re.match("RANK|WORLD_SIZE|LOCAL_|MASTER_|TORCHELASTIC_|SLURM_|OMPI_|PMI|PYTHON|GRADSYNC_", name)}
        # Not all cores for each rank.
        return {**own, "HOME": str(self.path), "OMP_NUM_THREADS": "1", **more}

    def start(self, arguments, **more):
        return subprocess.Popen([self.python, *map(str, arguments)], text=True, cwd=self.path, env=self.variables(**more),
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    @contextlib.contextmanager
    def server(self, *flags):
        """A parameter server, and its address; at the end it is killed, if it is still there."""
        with self.start(["-m", "gradsync.server", "--listen=127.0.0.1:0", *flags]) as process:
            try:
                said = re.match("listening on (.*)\n", process.stdout.readline())
                if said is None:
                    raise AssertionError(f"the server does not listen: {process.communicate()}")
                yield process, said[1]
            finally:
                process.kill()

    def run(self, arguments, timeout=120, **more):
        """(exit code, standard output, standard error)."""
        with self.start(arguments, **more) as process:
            try:
                output, error = process.communicate(timeout=timeout)
            except subprocess.TimeoutExpired:
                process.kill()
                output, error = process.communicate()
                raise AssertionError(f"{arguments}: not done after {timeout} s\n{output}\n{error[-3000:]}") from None
            return process.returncode, output, error
