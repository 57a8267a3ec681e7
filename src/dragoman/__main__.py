"""Where every command begins; also `python -m dragoman`, as torchrun and srun start it."""

import os
import signal


def main() -> None:
    """Run a command; Ctrl-C ends it without a traceback even while its modules are imported."""
    ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if ours:
        signal.signal(signal.SIGINT, _end_at_once)
    from dragoman import cli

    if ours:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    cli.main()


def _end_at_once(*_: object) -> None:
    os.write(2, b"dragoman: interrupted\n")
    os._exit(130)


if __name__ == "__main__":
    main()
