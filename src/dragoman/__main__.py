"""`python -m dragoman`, as torchrun and srun start it."""

from dragoman.cli import main

if __name__ == "__main__":
    main()
