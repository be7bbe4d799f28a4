"""Run ``python -m fedvlp`` like the command ``fedvlp``."""

import sys

from fedvlp.commands.cli import main

sys.exit(main())
