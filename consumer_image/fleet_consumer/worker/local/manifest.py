"""Documents of a YAML file, parsed as strictly as kubectl does.

Only this module of the worker needs PyYAML, which the image does not contain. Import it only to read a file.
"""

from typing import Any, Final

import yaml

MERGE: Final = "tag:yaml.org,2002:merge"


class _Loader(yaml.SafeLoader):
    """Loader that refuses a repeated field. PyYAML alone would silently use the last value."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if key.tag == MERGE or not isinstance(key, yaml.ScalarNode):
                continue
            if key.value in seen:
                raise yaml.constructor.ConstructorError(
                    problem=f"the field {key.value!r} is repeated", problem_mark=key.start_mark
                )
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def documents(text: str) -> list[Any]:
    """Return the non-empty documents in a YAML text. Raises ValueError with a one-line message."""
    try:
        return [found for found in yaml.load_all(text, _Loader) if found is not None]
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = "" if mark is None else f" in line {mark.line + 1}"
        raise ValueError(f"is not valid YAML: {error.problem}{where}") from error
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(f"is not valid YAML: {' '.join(str(error).split())}") from error
