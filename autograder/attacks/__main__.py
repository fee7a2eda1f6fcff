"""`python -m autograder.attacks`."""

import sys

from autograder.attacks.verb import main

if __name__ == "__main__":
    sys.exit(main())
