"""A first look at what a command was given, before any library loads: is all of it there?

It decides what may start at once, and refuses nothing. What looks wrong is refused, with its
reason, by whoever reads it in earnest, and nothing was started for it.
"""

import json
import os
import tomllib
from contextlib import suppress
from pathlib import Path

from privpipe.store.access.location import local_path


def looks_whole(given: dict[str, str]) -> bool:
    """Whether every place is there, and every variable that ``[collection]`` names.

    Parameters
    ----------
    given
        Arguments of a command by name. What only a network would show is taken to be there.
    """
    places = [given[name] for name in ("config", "model", "source") if given.get(name, "-") != "-"]
    with suppress(Exception):  # whoever reads it in earnest says what is wrong
        if os.path.isfile(given.get("config", "")):  # a pipe would be waited for
            content = tomllib.loads(Path(given["config"]).read_text("utf-8"))
            section = content["collection"]
            both = {"COLLECTION": section, "TRAINING": content.get("training", section)}
            # The environment overrides the file, as in `read_options`.
            places += [os.environ.get(f"PRIVPIPE_{k}__PATH", v["path"]) for k, v in both.items()]
            document = Path(local_path(places[-1]) or os.devnull, "zarr.json")
            if document.exists():  # else it is remote, or grows by partitions
                about = json.loads(document.read_text("utf-8"))["attributes"]["privpipe"]
                named = {*section.get("desired", ()), *section.get("confidential", ())}
                if not named <= {variable["name"] for variable in about["schema"]["variables"]}:
                    return False
        return all(path is None or os.path.exists(path) for path in map(local_path, places))
    return False
