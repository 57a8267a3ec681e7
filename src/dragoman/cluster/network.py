"""Which interface and address lead to another machine."""

import socket
from collections.abc import Sequence
from dataclasses import dataclass

import psutil

from dragoman.errors import UserError

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class Route:
    """An interface of this machine and its address."""

    interface: str
    address: str


def route_to(host: str, interface: str = "") -> Route:
    """Find the interface on the way to a host, or check the one asked for."""
    addresses = _addresses()
    if interface:
        if interface not in addresses:
            raise UserError(
                f"distributed.interface = {interface!r}: {socket.gethostname()} has no such "
                f"interface with an address; it has {_listed(addresses)}"
            )
        return Route(interface, addresses[interface])
    try:
        # Connecting a datagram socket sends nothing; it only looks up the route.
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host, 9))
            address = probe.getsockname()[0]
    except OSError as error:
        raise UserError(f"{host}: no way to it from {socket.gethostname()}: {error}") from None
    if address.startswith("127.") or address == _resolve(host):
        # A name of this very machine.
        return Route(next(name for name, own in addresses.items() if own == LOOPBACK), LOOPBACK)
    return Route(interface_of(address), address)


def route_to_others(hosts: Sequence[str], interface: str = "") -> Route:
    """The way to the first host that is not this very machine, which may be among them."""
    for host in hosts:
        route = route_to(host, interface)
        if route.address != LOOPBACK:
            break
    return route


def interface_of(address: str) -> str:
    """The interface of this machine that has the address."""
    return {own: name for name, own in _addresses().items()}[address]


def interface_seen_by(machines: int, master: str) -> str:
    """The interface that leads to the master, and on the master the one that others reach."""
    route = route_to(master)
    is_master = route.address == LOOPBACK
    if is_master and machines > 1:
        address = _resolve(master)
        if address.startswith("127."):
            raise UserError(
                f"MASTER_ADDR={master} is {address} on {socket.gethostname()}, which no other "
                "machine reaches; give its address on the network instead"
            )
        return interface_of(address)
    return route.interface


def link_speed_mbit(interface: str) -> int | None:
    """Speed the interface claims; None where it claims nothing."""
    statistics = psutil.net_if_stats().get(interface)
    return statistics.speed if statistics and statistics.speed > 0 else None


def interface_speeds() -> dict[str, int | None]:
    """Every interface with an address, but for the loopback, and the speed it claims."""
    return {name: link_speed_mbit(name) for name, own in _addresses().items() if own != LOOPBACK}


def _addresses() -> dict[str, str]:
    """IPv4 address of every interface that has one."""
    return {
        name: entry.address
        for name, entries in psutil.net_if_addrs().items()
        for entry in entries
        if entry.family == socket.AF_INET
    }


def _resolve(host: str) -> str:
    return socket.gethostbyname(host)


def _listed(addresses: dict[str, str]) -> str:
    return ", ".join(f"{name} ({address})" for name, address in addresses.items()) or "none"
