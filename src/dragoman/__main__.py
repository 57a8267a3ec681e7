"""Where every command begins; also `python -m dragoman`, as torchrun and srun start it."""

from dragoman.stop_signals import imports_interruptible


def main() -> None:
    """Run a command; Ctrl-C ends it without a traceback even while its modules are imported."""
    with imports_interruptible():
        from dragoman import cli

        cli.main()


if __name__ == "__main__":
    main()
