"""Several machines on one: network namespaces with names, addresses, link rates and real sshd."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from forked import ENTER
from support import PATIENCE, has_step, metrics, wait_until

SUBNET = "10.77.0"
NAMES = re.compile(r"dg(\d+)(sw|\d+)")  # Of namespaces: whose they are, and which.
END_WITH_US = ["setpriv", "--pdeathsig", "KILL"]
GUEST = Path(__file__).with_name("guest.py")


def shell(command: str) -> str:
    return subprocess.run(
        command, shell=True, check=True, capture_output=True, text=True
    ).stdout.strip()


@dataclass
class Machine:
    """A host of its own: network, name, private folders, and an ssh server."""

    name: str
    namespace: str
    address: str
    folder: Path  # Keys and configuration of ssh.
    private: Path  # A folder that no other machine sees.
    template: Path | None = None  # Where agents are forked from.
    variables: Mapping[str, str] = field(default_factory=dict)  # Of all that runs there.
    mounts: list[str] = field(default_factory=list)
    server: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the ssh server, as if the machine had just booted."""
        config = self.folder / f"sshd-{self.name}"
        # A home of its own: what a user's shell does when it starts takes long, and if it is killed
        # meanwhile it may leave a lock behind for which every later login waits.
        variables = {"TMPDIR": self.private, "HOME": self.private, **self.variables}
        config.write_text(
            f"ListenAddress {self.address}\nHostKey {self.folder}/host_key\n"
            f"AuthorizedKeysFile {self.folder}/key.pub\nStrictModes no\nUsePAM no\n"
            "PidFile none\nPermitRootLogin yes\nAcceptEnv *\n"
            f"SetEnv {' '.join(f'{name}={value}' for name, value in variables.items())}\n"
            + (f"ForceCommand {sys.executable} -S {GUEST} {self.template}" * bool(self.template))
        )
        steps = [
            f"hostname {self.name}",
            f"mount -t tmpfs none {self.private}",
            *self.mounts,
            f"exec ip netns exec {self.namespace} /usr/sbin/sshd -D -e -f {config}",
        ]
        self.server = subprocess.Popen(
            [*END_WITH_US, "unshare", "--uts", "--mount", "sh", "-e", "-c", "\n".join(steps)],
            stderr=subprocess.DEVNULL,
        )

    def command(self, *words: str | Path) -> list[str]:
        """A command typed on this machine."""
        assert self.server
        return [*ENTER, f"--target={self.server.pid}", *map(str, words)]

    def kill(self) -> None:
        """End every process of the machine at once, as if its power had failed."""
        _kill_all(self.namespace)
        if self.server:
            self.server.wait()

    def workers(self, verb: str = "train") -> list[psutil.Process]:
        """The workers of a command on this machine."""
        found = []
        for pid in shell(f"ip netns pids {self.namespace}").split():
            with suppress(psutil.NoSuchProcess):  # Some end while we look.
                process = psutil.Process(int(pid))
                if verb in process.cmdline() and "LOCAL_RANK" in process.environ():
                    found.append(process)
        return found

    def cut(self) -> None:
        """Pull the network cable."""
        shell(f"ip -n {self.namespace} link set eth0 down")

    def mend(self) -> None:
        """Plug it in again."""
        shell(f"ip -n {self.namespace} link set eth0 up")

    def limit(self, rate: str) -> None:
        """Let the link send no faster than this, as in 100mbit."""
        shell(
            f"ip netns exec {self.namespace} tc qdisc replace dev eth0 root tbf rate {rate} "
            "burst 256kb latency 50ms"
        )

    def unlimit(self) -> None:
        """Let the link send as fast as it can."""
        run = ["ip", "netns", "exec", self.namespace, "tc", "qdisc", "del", "dev", "eth0", "root"]
        subprocess.run(run, capture_output=True)  # There may be no limit.

    def sent_bytes(self) -> int:
        """Counter of the network card."""
        links = json.loads(shell(f"ip -n {self.namespace} -s -j link show eth0"))
        return int(links[0]["stats64"]["tx"]["bytes"])

    def see(self, path: Path) -> Path:
        """A path as the machine sees it; its private folder looks different from outside."""
        assert self.server
        return Path(f"/proc/{self.server.pid}/root{path}")


@dataclass
class Network:
    """Machines on one switch, and a desk to launch from."""

    machines: list[Machine]
    desk: int  # A process that sits there.
    folder: Path

    def command(self, *words: str | Path) -> list[str]:
        """A command at the desk."""
        return [*ENTER, f"--target={self.desk}", *map(str, words)]

    def dragoman(self, *words: str | Path) -> list[str]:
        """A dragoman command at the desk."""
        return self.command(sys.executable, "-m", "dragoman", *words)

    def environment(self) -> dict[str, str]:
        """Variables under which `ssh` finds the test's keys."""
        return os.environ | {"PATH": f"{self.folder}/bin:{os.environ['PATH']}"}


@contextmanager
def network(
    folder: Path,
    names: Sequence[str],
    template: Path | None = None,
    variables: Mapping[str, str] | None = None,
) -> Iterator[Network]:
    """Build machines and tear them down."""
    needed = [tool for tool in ("ip", "tc", "unshare", "ssh-keygen") if not shutil.which(tool)]
    if needed or os.getuid() or not Path("/usr/sbin/sshd").exists():
        pytest.skip(f"needs root, iproute2 and openssh-server (missing: {needed})")
    _remove_what_was_left_behind()
    tag = f"dg{os.getpid()}"
    if subprocess.run(["ip", "netns", "add", f"{tag}sw"], capture_output=True).returncode:
        pytest.skip("network namespaces are not allowed here")
    made = [f"{tag}sw"]
    machines: list[Machine] = []
    try:
        _write_keys(folder, names)
        shell(f"ip -n {tag}sw link add name br0 type bridge && ip -n {tag}sw link set br0 up")
        addresses = {name: f"{SUBNET}.{index}" for index, name in enumerate(["desk", *names], 1)}
        for index, (name, address) in enumerate(addresses.items()):
            namespace = f"{tag}{index}"
            made.append(namespace)
            _connect(tag, namespace, index, address, addresses)
            if name != "desk":
                private = folder / "private"
                private.mkdir(exist_ok=True)
                machines.append(
                    Machine(name, namespace, address, folder, private, template, variables or {})
                )
        with _sitting_in(f"{tag}0") as desk:
            yield Network(machines, desk, folder)
    finally:
        for machine in machines:
            machine.kill()
        for namespace in made:
            _remove(namespace)


@contextmanager
def _sitting_in(namespace: str) -> Iterator[int]:
    """A process that holds a namespace, and the files that are its own, open."""
    words = [*END_WITH_US, "ip", "netns", "exec", namespace, "sh", "-c", "echo ready; exec cat"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stdout.readline() == b"ready\n"
        yield process.pid


def _remove_what_was_left_behind() -> None:
    """End the machines of tests that were killed."""
    for name in shell("ip netns list | cut -d ' ' -f 1").split():
        match = NAMES.fullmatch(name)
        if match and not psutil.pid_exists(int(match[1])):
            _kill_all(name)
            _remove(name)


def _kill_all(namespace: str) -> None:
    for pid in shell(f"ip netns pids {namespace}").split():
        try:
            os.kill(int(pid), signal.SIGKILL)
        except ProcessLookupError:
            continue


def _remove(namespace: str) -> None:
    subprocess.run(["ip", "netns", "del", namespace], check=False)
    shutil.rmtree(f"/etc/netns/{namespace}", ignore_errors=True)


def start_all(net: Network) -> None:
    """Start every machine, and wait until all answer."""
    for machine in net.machines:
        machine.start()
    wait_for_ssh(net)


def wait_for_ssh(net: Network) -> None:
    """Wait until every machine answers."""
    for machine in net.machines:
        command = net.command("ssh", machine.name, "true")
        wait_until(
            lambda command=command: (
                not subprocess.run(  # type: ignore[misc]
                    command, env=net.environment(), capture_output=True
                ).returncode
            )
        )


@contextmanager
def training(
    net: Network, config: Path, *overrides: str, hosts: str = "hostA:1,hostB:1"
) -> Iterator[subprocess.Popen[str]]:
    """A run launched from the desk; its folder is private to each machine."""
    run = net.folder / "private" / "run"
    with open(net.folder / "output", "w") as output:
        process = subprocess.Popen(
            net.dragoman("train", config, "--run", run, "--hosts", hosts, *overrides),
            env=net.environment(),
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        print((net.folder / "output").read_text())  # Shown if the test fails.


def end_of(net: Network, process: subprocess.Popen[str]) -> str:
    """Wait for a run to end and return all it said."""
    process.wait(timeout=PATIENCE)
    return (net.folder / "output").read_text()


def wait_for_all(net: Network, run: Path, steps: int) -> None:
    """Wait until all machines are in the run, one of which may have begun alone, and step."""
    wait_until(lambda: _hosts_now(run) == {machine.name for machine in net.machines})
    begun = (metrics(run, "start") + metrics(run, "restart"))[-1]["step"]
    wait_until(lambda: has_step(run, begun + steps))


def _hosts_now(run: Path) -> set[str]:
    if not (run / "metrics.jsonl").exists():
        return set()
    begun = metrics(run, "start") + metrics(run, "restart")
    return set(begun[-1]["hosts"]) if begun else set()


def run_on(net: Network, machine: Machine) -> Path:
    return machine.see(net.folder / "private" / "run")


def _connect(tag: str, namespace: str, index: int, address: str, addresses: dict[str, str]) -> None:
    hosts = Path(f"/etc/netns/{namespace}/hosts")
    hosts.parent.mkdir(parents=True, exist_ok=True)
    lines = ["127.0.0.1 localhost", *(f"{ip} {name}" for name, ip in addresses.items())]
    hosts.write_text("\n".join(lines) + "\n")
    shell(f"ip netns add {namespace}")
    shell(f"ip link add {tag}p{index} type veth peer name eth0 netns {namespace}")
    shell(f"ip link set {tag}p{index} netns {tag}sw")
    shell(f"ip -n {tag}sw link set {tag}p{index} master br0 up")
    shell(f"ip -n {namespace} addr add {address}/24 dev eth0")
    shell(f"ip -n {namespace} link set eth0 up && ip -n {namespace} link set lo up")


def _write_keys(folder: Path, names: Sequence[str]) -> None:
    for key in ("key", "host_key"):
        shell(f"ssh-keygen -q -t ed25519 -N '' -f {folder}/{key}")
    Path("/run/sshd").mkdir(exist_ok=True)
    (folder / "ssh_config").write_text(
        f"Host *\n IdentityFile {folder}/key\n StrictHostKeyChecking no\n"
        " UserKnownHostsFile /dev/null\n LogLevel ERROR\n"
    )
    (folder / "bin").mkdir()
    wrapper = folder / "bin" / "ssh"
    wrapper.write_text(f'#!/bin/sh\nexec /usr/bin/ssh -F {folder}/ssh_config "$@"\n')
    wrapper.chmod(0o755)
