"""``python -m fedvlp`` is ``fedvlp``."""

import sys

from fedvlp.commands.cli import main

sys.exit(main())
