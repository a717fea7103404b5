"""Rewrites a JSON schema so that a grammar can express it: bounded, with JSON's type names, without the rest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lily.chat.grammar_budget import GrammarBudget
from lily.chat.grammar_combinations import DEMANDS, CombinationBounds
from lily.chat.schema_references import References
from lily.chat.schema_types import ANY, json_types
from lily.errors import InvalidArgumentError

__all__ = ["GrammarSchema", "shortened"]

_MAX_PROPERTIES = 2_000  # of one object
_MAX_COUNT = 1_000_000  # limit of minItems, maxLength and similar
_MAX_MULTIPLE = 10_000  # states of the automaton of a number
_LONG_ENUM = 100
_LONGEST_DROPPED = 20

_COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
_STRING_WORDS = ("minLength", "maxLength", "pattern", "format")
_NUMBER_WORDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_WITHOUT_GRAMMAR = frozenset(
    [
        *("not", "if", "then", "else", "contains", "minContains", "maxContains", "uniqueItems", "propertyNames"),
        *("dependentRequired", "dependentSchemas", "dependencies", "unevaluatedItems", "unevaluatedProperties"),
        *("$dynamicRef", "$recursiveRef"),
    ]
)


class GrammarSchema:
    """A schema as the grammar's library gets it.

    Attributes
    ----------
    schema : mapping
        The rewritten schema; references lead only to its own ``$defs``, all of which are used.
    dropped : tuple of str
        What the grammar does not enforce: the first keywords, with their places.
    """

    def __init__(
        self,
        schema: Mapping[str, Any],
        references: References,
        *,
        tolerant: bool = False,
        combine: bool = True,
        budget: GrammarBudget | None = None,
    ) -> None:
        """
        Parameters
        ----------
        schema, references
            The schema, and the references of its document.
        tolerant
            Leave invalid schemas out instead of refusing them.
        combine
            False: leave out requirements that apply together with others.
        budget
            Shared by the schemas of one grammar.

        Raises
        ------
        InvalidArgumentError
            It is not a valid schema, or too large.
        """
        self._references = references
        self._tolerant = tolerant
        self._budget = budget or GrammarBudget()
        self._left_out: dict[str, None] = {}
        self._places: dict[int, str] = {}  # of rewritten schemas
        self._names: dict[int, str] = {}  # definitions, by the identity of their source
        self._waiting: list[tuple[str, Any, str]] = []
        self._multiple = 1
        self._demands = False  # whether any schema has several requirements on one value
        root = self._rewritten(schema, "#")
        definitions: dict[str, Any] = {}
        while self._waiting:
            name, target, place = self._waiting.pop()
            definitions[name] = self._rewritten(target, place)
        if self._demands:
            bounds = CombinationBounds(definitions, self._budget, self._note_combination, combine=combine)
            for part in (root, *definitions.values()):
                bounds.apply(part)
        self.schema: dict[str, Any] = root if isinstance(root, dict) else {}
        if definitions:
            self.schema = {**self.schema, "$defs": definitions}

    @property
    def dropped(self) -> tuple[str, ...]:
        """See the class."""
        return shortened(list(self._left_out))

    # -- one schema ------------------------------------------------------------------------------------------------

    def _rewritten(self, schema: Any, place: str) -> Any:
        self._budget.take_node()
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, Mapping):
            self._refuse("a schema must be an object or a boolean", place)
            return True
        written: dict[str, Any] = {}
        for keyword, value in schema.items():
            if value is not None or keyword == "const":  # serializers write null for "not set"
                self._write(written, keyword, value, schema, place)
        if schema.get("nullable") is True and "type" in written:
            kinds = written["type"] if isinstance(written["type"], list) else [written["type"]]
            written["type"] = list(dict.fromkeys([*kinds, "null"]))
        self._check_strings(written, place)
        self._check_numbers(written, place)
        self._check_object(written, place)
        self._demands = self._demands or not DEMANDS.isdisjoint(written)
        self._places[id(written)] = place
        return written

    def _write(self, written: dict[str, Any], keyword: str, value: Any, schema: Mapping[str, Any], place: str) -> None:
        inside = f"{place}/{keyword}"
        if keyword == "$ref":
            self._write_reference(written, value, inside)
        elif keyword == "type":
            self._write_type(written, value, place)
        elif keyword in (*_NUMBER_WORDS, "pattern", "format"):
            written[keyword] = value
        elif keyword == "const" or (keyword == "enum" and self._is_list(keyword, value, place)):
            self._write_choices(written, keyword, value, place)
        elif keyword in _COUNTS:
            self._write_count(written, keyword, value, place)
        elif keyword in ("anyOf", "oneOf", "allOf", "prefixItems"):
            self._write_schemas(written, keyword, value, inside)
        elif keyword == "items" and isinstance(value, (list, tuple)):
            self._write_schemas(written, "prefixItems", value, inside)
            written["items"] = self._rewritten(schema.get("additionalItems", True), f"{place}/additionalItems")
        elif keyword in ("items", "additionalProperties"):
            written[keyword] = self._rewritten(value, inside)
        elif keyword == "properties":
            self._write_properties(written, value, inside)
        elif keyword == "patternProperties":
            self._write_pattern_properties(written, value, inside)
        elif keyword == "required":
            self._write_required(written, value, schema, place)
        elif keyword == "unevaluatedProperties" and value is False and _evaluates_itself(schema):
            written["additionalProperties"] = False
        elif keyword in _WITHOUT_GRAMMAR and (keyword, value) != ("uniqueItems", False):
            self._drop(keyword, place)

    def _write_reference(self, written: dict[str, Any], value: Any, place: str) -> None:
        target = self._references.follow({"$ref": value}) if isinstance(value, str) else None
        if isinstance(target, bool) or target == {}:
            return
        if not isinstance(target, Mapping):
            self._refuse(f"$ref {str(value)[:100]!r} does not point to a schema inside this one", place)
            return
        if id(target) not in self._names:
            name = self._names[id(target)] = f"d{len(self._names)}"
            self._waiting.append((name, target, str(value)[:100]))
        written["$ref"] = f"#/$defs/{self._names[id(target)]}"

    def _write_type(self, written: dict[str, Any], value: Any, place: str) -> None:
        names = value if isinstance(value, (list, tuple)) else [value]
        kinds: dict[str, None] = {}
        for name in names:
            known = json_types(name)
            if not known:
                self._refuse(f"the type {str(name)[:100]!r} is not known", place)
            if not known or ANY in known:
                return
            kinds.update(dict.fromkeys(known))
        if kinds:
            written["type"] = next(iter(kinds)) if len(kinds) == 1 else list(kinds)

    def _write_count(self, written: dict[str, Any], keyword: str, value: Any, place: str) -> None:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or value != int(value) or value < 0:
            self._refuse(f"{keyword} must be a whole number", place)
        elif value > _MAX_COUNT:
            self._drop(keyword, place)
        else:
            written[keyword] = int(value)

    def _write_choices(self, written: dict[str, Any], keyword: str, value: Any, place: str) -> None:
        if self._budget.takes_literals(value if keyword == "enum" else [value]):
            written[keyword] = value
        else:
            self._drop(keyword, place)

    def _is_list(self, keyword: str, value: Any, place: str) -> bool:
        if isinstance(value, (list, tuple)) and value:
            return True
        self._refuse(f"{keyword} must be a non-empty list", place)
        return False

    def _write_schemas(self, written: dict[str, Any], keyword: str, value: Any, place: str) -> None:
        if self._is_list(keyword, value, place):
            written[keyword] = [self._rewritten(item, f"{place}/{at}") for at, item in enumerate(value)]

    def _write_properties(self, written: dict[str, Any], value: Any, place: str) -> None:
        if not isinstance(value, Mapping):
            self._refuse("properties must be an object", place)
        elif len(value) > _MAX_PROPERTIES or not self._budget.takes_literals(list(value)):
            self._drop("properties", place)
            written.setdefault("type", "object")
        else:
            written["properties"] = {
                name: self._rewritten(item, f"{place}/{name[:40]}") for name, item in value.items()
            }

    def _write_required(self, written: dict[str, Any], value: Any, schema: Mapping[str, Any], place: str) -> None:
        if not isinstance(value, (list, tuple)) or not all(isinstance(name, str) for name in value):
            if not isinstance(value, bool):  # an old draft has it inside the properties
                self._refuse("required must be a list of names", place)
            return
        properties = schema.get("properties")
        known = properties if isinstance(properties, Mapping) and len(properties) <= _MAX_PROPERTIES else {}
        names = list(dict.fromkeys(value))
        if len(known) + sum(name not in known for name in names) > _MAX_PROPERTIES:
            self._drop("required", place)
            names = [name for name in names if name in known]
        if self._budget.takes_literals(names):
            written["required"] = names
        else:
            self._drop("required", place)

    def _write_pattern_properties(self, written: dict[str, Any], value: Any, place: str) -> None:
        if not isinstance(value, Mapping):
            self._refuse("patternProperties must be an object", place)
            return
        names = dict.fromkeys(value, True)
        if not self._budget.takes_patterns(list(value)) or not self._budget.is_supported(
            {"type": "object", "patternProperties": names}
        ):
            self._drop("patternProperties", place)
            return
        written["patternProperties"] = {
            name: self._rewritten(item, f"{place}/{name[:40]}") for name, item in value.items()
        }

    # -- keywords that the library supports only in part
    # ----------------------------------------------------------------

    def _check_strings(self, written: dict[str, Any], place: str) -> None:
        """Leave out the pattern, the format or the lengths if the library cannot combine them."""
        if len(written.get("enum", ())) > _LONG_ENUM:  # each value would be tried with them
            for word in [word for word in (*_STRING_WORDS, *_NUMBER_WORDS) if word in written]:
                self._drop(word, place)
                del written[word]
        if "pattern" in written and not (
            isinstance(written["pattern"], str) and self._budget.takes_patterns([written["pattern"]])
        ):
            self._drop("pattern", place)
            del written["pattern"]
        if not written.keys() & {"pattern", "format"}:
            return
        words = {word: written[word] for word in _STRING_WORDS if word in written}
        for unfit in ((), ("format",), ("minLength", "maxLength"), ("format", "minLength", "maxLength"), _STRING_WORDS):
            kept = {word: value for word, value in words.items() if word not in unfit}
            if self._budget.is_supported({"type": "string", **kept}):
                break
        for word in words.keys() - kept.keys():
            self._drop(word, place)
            del written[word]

    def _check_numbers(self, written: dict[str, Any], place: str) -> None:
        multiple = written.get("multipleOf")
        if multiple is not None and not self._is_small_multiple(multiple):
            self._drop("multipleOf", place)
            del written["multipleOf"]
        words = {word: written[word] for word in _NUMBER_WORDS if word in written}
        for kind in ("integer", "number") if words else ():
            kinds = written.get("type", ("integer", "number"))
            if kind in kinds and not self._budget.is_supported({"type": kind, **words}):
                for word in words:
                    self._drop(word, place)
                    del written[word]
                return

    def _check_object(self, written: dict[str, Any], place: str) -> None:
        """Leave out property counts if some named properties are optional: the library counts only the others."""
        counts = written.keys() & {"minProperties", "maxProperties"}
        if not counts or set(written.get("properties", ())) <= set(written.get("required", ())):
            return
        least, most = written.get("minProperties", 0), written.get("maxProperties", 1)
        closed = written.get("additionalProperties") is False and "patternProperties" not in written
        if not (closed and least <= 1 and most == 1):
            for word in sorted(counts):
                self._drop(word, place)
                del written[word]

    def _is_small_multiple(self, multiple: Any) -> bool:
        """Whether the automata of all `multipleOf` in this schema stay small, even combined."""
        if isinstance(multiple, bool) or not isinstance(multiple, (int, float)) or not 1e-6 <= multiple <= 1e6:
            return False
        digits = f"{multiple:.6f}".rstrip("0").replace(".", "").lstrip("0")
        factor = max(1, int(digits or "0") if multiple % 1 else int(multiple))
        if self._multiple % factor:
            self._multiple *= factor
        return self._multiple <= _MAX_MULTIPLE

    def _note_combination(self, keyword: str, schema: dict[str, Any]) -> None:
        self._drop(keyword, self._places.get(id(schema), "#"))

    def _drop(self, keyword: str, place: str) -> None:
        self._left_out[f"{keyword} at {place[-120:]}"] = None

    def _refuse(self, reason: str, place: str) -> None:
        if not self._tolerant:
            raise InvalidArgumentError(f"the grammar is not valid: {reason} (at {place[-120:]})")
        self._left_out[f"{reason} (at {place[-120:]})"] = None


def _evaluates_itself(schema: Mapping[str, Any]) -> bool:
    """Whether all properties that a schema allows are named in it."""
    others = {*DEMANDS, "if", "then", "else", "dependentSchemas", "dependencies", "additionalProperties"}
    return others.isdisjoint(schema)


def shortened(dropped: Sequence[str]) -> tuple[str, ...]:
    """The first items that were left out, and the number of the others."""
    more = len(dropped) - _LONGEST_DROPPED
    return tuple(dropped) if more <= 0 else (*dropped[:_LONGEST_DROPPED], f"and {more} more")
