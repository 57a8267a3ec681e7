"""Which interface and address route to another machine."""

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
    if interface:
        setting = f"distributed.interface = {interface!r}"
        route = route_over(interface, setting)
        if route.address == LOOPBACK and not _is_here(host):
            raise UserError(f"{setting} has no route to {host}; {_here()} has {_listed()}")
        return route
    try:
        # Connecting a datagram socket sends nothing; it only looks up the route.
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host, 9))
            address = probe.getsockname()[0]
    except socket.gaierror:
        raise UserError(
            f"{host}: {_here()} cannot resolve this name; add it to /etc/hosts or DNS, or give its "
            "address"
        ) from None
    except OSError as error:
        raise UserError(f"{host}: no route to it from {_here()}: {error}") from None
    if _is_here(host):
        return Route(interface_of(LOOPBACK), LOOPBACK)
    return Route(interface_of(address), address)


def route_over(interface: str, setting: str) -> Route:
    """An interface that a setting names, and its first address, which the engine uses too."""
    addresses = _addresses().get(interface)
    if not addresses:
        raise UserError(
            f"{setting}: {_here()} has no such interface with an address; it has {_listed()}"
        )
    return Route(interface, addresses[0])


def route_to_others(hosts: Sequence[str], interface: str = "") -> Route:
    """The way to the first host that is not this very machine, which may be among them."""
    for host in hosts:
        route = route_to(host, interface)
        if route.address != LOOPBACK:
            break
    return route


def interface_of(address: str) -> str:
    """The interface of this machine that has the address."""
    for name, addresses in _addresses().items():
        if address in addresses:
            return name
    raise UserError(f"{address} is not an address of {_here()}; it has {_listed()}")


def interface_seen_by(machines: int, master: str) -> str:
    """The interface that leads to the master, and on the master the one that others reach."""
    route = route_to(master)
    is_master = route.address == LOOPBACK
    if is_master and machines > 1:
        address = _resolve(master)
        if address.startswith("127."):
            raise UserError(
                f"MASTER_ADDR={master} is {address} on {_here()}, which other machines cannot "
                "reach; use its network address instead"
            )
        return interface_of(address)
    return route.interface


def link_speed_mbit(interface: str) -> int | None:
    """Speed the interface claims; None where it claims nothing."""
    statistics = psutil.net_if_stats().get(interface)
    return statistics.speed if statistics and statistics.speed > 0 else None


def interface_speeds() -> dict[str, int | None]:
    """Every interface with an address, but for the loopback, and the speed it claims."""
    return {
        name: link_speed_mbit(name) for name, own in _addresses().items() if LOOPBACK not in own
    }


def _addresses() -> dict[str, list[str]]:
    """IPv4 addresses of every interface that has any."""
    addresses = {
        name: [entry.address for entry in entries if entry.family == socket.AF_INET]
        for name, entries in psutil.net_if_addrs().items()
    }
    return {name: own for name, own in addresses.items() if own}


def _is_here(host: str) -> bool:
    """Whether a name or address is one of this very machine."""
    address = _resolve(host)
    return address.startswith("127.") or any(address in own for own in _addresses().values())


def _resolve(host: str) -> str:
    try:
        return socket.gethostbyname(host)
    except OSError as error:
        raise UserError(f"{host}: no route to it from {_here()}: {error}") from None


def _here() -> str:
    return socket.gethostname()


def _listed() -> str:
    each = (f"{name} ({', '.join(own)})" for name, own in _addresses().items())
    return ", ".join(each) or "none"
