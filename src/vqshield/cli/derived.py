"""Commands derived from Python calls: options, their defaults and their help are those of the call.

Each parameter of the call becomes an option, with its default from the signature (or a settings dataclass)
and its help from the docstring's Args or Attributes. What has to differ is declared by an `Option`, what a
command line has no use for by `PythonOnly`:

    @derived(vq.certify, radii=Option("radius"), labels=PythonOnly("belongs to images that are tensors"))
    def certify(values: Values, records: RecordOptions, strict: Strict = False) -> None:
        '''Certify a defended classifier.'''
        values.call(vq.certify, out=records.out)

The function's other parameters are options as well; one whose type is a dataclass is a group of options.
"""

import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass, replace
from functools import wraps
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import typer

Result = TypeVar("Result")
_SECTION = re.compile("^(Args|Attributes):$", re.MULTILINE)
_ENTRY = re.compile(r" {4}(\w+(?:, \w+)*): (.*)")
_TYPES = (bool, Path, str, int, float)
"""What can be typed, the preferred first where a parameter takes several."""


@dataclass(frozen=True)
class Option:
    """How an option differs from the parameter that it stands for.

    Attributes:
        name: its name; None: the parameter's.
        type: its type; None: what can be typed for the parameter.
        help: its help; None: the parameter's text in the docstring.
        flag: how it is typed, such as "--quick/--full"; None: as its name.
        argument: whether it is an argument, which is typed without a flag.
        metavar: how its value is shown in the help.
        least, most: the range of valid numbers.
        default: its default, and the reason why that is not the parameter's.
        parse: makes the parameter's value from the typed one and the values of all options.
    """

    name: str | None = None
    type: Any = None
    help: str | None = None
    flag: str | None = None
    argument: bool = False
    metavar: str | None = None
    least: int | None = None
    most: int | None = None
    default: tuple[object, str] | None = None
    parse: Callable[[Any, Mapping[str, Any]], object] | None = None


@dataclass(frozen=True)
class PythonOnly:
    """A parameter that is no option, and why."""

    reason: str


def python_only(reason: str, *names: str) -> dict[str, PythonOnly]:
    """Declarations of several parameters that are no options for the same reason."""
    return dict.fromkeys(names, PythonOnly(reason))


@dataclass(frozen=True)
class Presets:
    """Settings without and with --quick. Where the two differ, the option has no default of its own."""

    full: Any
    quick: Any


Source = Callable[..., Any] | Presets
Declared = Mapping[str, Option | PythonOnly]


class Values(dict[str, Any]):
    """The values of a command's options, by the parameters of the Python call that they stand for."""

    def arguments(self, target: Callable[..., Any]) -> dict[str, Any]:
        """The arguments of a call. An option without a value is left out: the call's default holds."""
        known = inspect.signature(target).parameters
        return {name: value for name, value in self.items() if name in known and value not in (None, ())}

    def call(self, target: Callable[..., Result], **others: Any) -> Result:
        """Make a call with the values of its options, and with other arguments."""
        return target(**(self.arguments(target) | others))

    def settings(self, preset: Result, **others: Any) -> Result:
        """A preset with the values of its options, and with other values."""
        changes = self.arguments(type(preset)) | others
        return replace(preset, **changes)  # type: ignore[type-var]


@dataclass
class Derivation:
    """The options of a command, and where they come from.

    Attributes:
        sources: the calls and settings.
        declared: what was declared about their parameters, and about the options of groups.
        function: what is called with the values.
        options: the command's parameters, by the parameters that they stand for.
        groups: the function's parameters that are groups of options, with their types.
        own: names of the function's other parameters.
    """

    sources: Sequence[Source]
    declared: Declared
    function: Callable[..., None]
    options: dict[str, inspect.Parameter] = field(default_factory=dict)
    groups: dict[str, type] = field(default_factory=dict)
    own: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        beside: dict[str, inspect.Parameter] = {}
        own = {name: how for name, how in self.declared.items() if isinstance(how, Option)}
        for each in inspect.signature(self.function, eval_str=True).parameters.values():
            if isinstance(each.annotation, type) and is_dataclass(each.annotation):
                self.groups[each.name] = each.annotation
                beside |= _options(each.annotation, own)
            elif each.annotation is not Values:
                self.own.append(each.name)
                beside[each.name] = each.replace(kind=each.KEYWORD_ONLY)
        for source in self.sources:
            found = _options(source, self.declared, taken=[*self.options, *beside])
            self.options |= found
        self.options |= beside

    def call(self, typed: Mapping[str, Any]) -> None:
        """Call the function with the values that were typed."""
        values = Values()
        for name, option in self.options.items():
            value = typed[option.name]
            values[name] = tuple(value) if isinstance(value, list) else value
        for name, how in self.declared.items():
            if isinstance(how, Option) and how.parse and values.get(name) not in (None, ()):
                values[name] = how.parse(values[name], typed)
        groups = {name: kind(**values.arguments(kind)) for name, kind in self.groups.items()}
        self.function(values, **groups, **{name: typed[name] for name in self.own})


def derived(
    *sources: Source, **declared: Option | PythonOnly
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a command of a function: its options are the parameters of the sources, then its own.

    Args:
        sources: the calls that the command makes, and the settings that it makes for them. Where several have
            a parameter of one name, that of the first is taken; the function's own replace both.
        declared: declarations for parameters of these sources, and for options of groups.
    """

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        derivation = Derivation(sources, declared, function)

        @wraps(function)
        def command(**typed: Any) -> None:
            derivation.call(typed)

        signature = inspect.Signature([*derivation.options.values()])
        vars(command).update(__signature__=signature, derivation=derivation)
        return command

    return decorate


def parameters(source: Source) -> dict[str, inspect.Parameter]:
    """The parameters of a call, or the fields of settings, annotated with a type and a help text."""
    target = type(source.full) if isinstance(source, Presets) else source
    texts = documented(target)
    found = dict(inspect.signature(target, eval_str=True).parameters)
    for name, each in found.items():
        text, default = texts.get(name, ""), each.default
        if isinstance(source, Presets) and getattr(source.full, name) != getattr(source.quick, name):
            default = None
            full, quick = (_shown(getattr(preset, name)) for preset in (source.full, source.quick))
            text = f"{text.removesuffix('.')} (default: {full}; with --quick {quick})."
        found[name] = each.replace(default=default, annotation=Annotated[each.annotation, text])
    return found


def documented(target: Callable[..., Any]) -> dict[str, str]:
    """The text of each parameter, from the section Args or Attributes of a docstring, and of its bases."""
    texts: dict[str, str] = {}
    for each in reversed(inspect.getmro(target)) if isinstance(target, type) else (target,):
        names: Sequence[str] = ()
        _, _, after = _SECTION.sub("\0", inspect.cleandoc(each.__doc__ or "")).partition("\0")
        for line in re.split(r"\n(?=\S)", after)[0].splitlines():
            if entry := _ENTRY.fullmatch(line):
                names = entry[1].split(", ")
            for name in names:
                texts[name] = entry[2] if entry else f"{texts[name]} {line.strip()}".strip()
    return texts


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    return "all" if value is None else str(value)


def _options(source: Source, declared: Declared, taken: Iterable[str] = ()) -> dict[str, inspect.Parameter]:
    """The options for the parameters of a source, except those that are taken or not for commands."""
    found = {}
    for name, each in parameters(source).items():
        how = declared.get(name, Option())
        if isinstance(how, Option) and name not in taken:
            found[name] = _option(each, how)
    return found


def _option(parameter: inspect.Parameter, how: Option) -> inspect.Parameter:
    """The parameter of a command that stands for one of a call."""
    annotation, *extras = get_args(parameter.annotation)
    flags = [how.flag] if how.flag else [extra.default for extra in extras[:-1]]
    text = how.help or _help(extras[-1])
    default = parameter.default if how.default is None else how.default[0]
    kind = how.type or option_type(annotation, parameter.name)
    if get_origin(kind) is list and default is not parameter.empty:
        default = default or None
        text = f"{text.removesuffix('.')}; may be repeated."
    elif kind is Path and isinstance(default, str):
        default = Path(default)
    kind = kind | None if default is None else kind
    info = (
        typer.Argument(help=text, metavar=how.metavar)
        if how.argument
        else typer.Option(*flags, help=text, metavar=how.metavar, min=how.least, max=how.most)
    )
    return inspect.Parameter(
        how.name or parameter.name,
        parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[kind, info],
    )


def _help(text: str) -> str:
    """The text of a docstring as the help of an option."""
    plain = text.replace("`", "").replace('"', "")
    return plain[:1].upper() + plain[1:]


def option_type(annotation: Any, name: str) -> Any:
    """What can be typed for a parameter: one of the types that it takes, or a list."""
    members = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    for each in members:
        if get_origin(each) in (list, tuple, Iterable, Sequence):
            return list[option_type(get_args(each)[0], name)]  # type: ignore[misc]
    kinds = [type(get_args(each)[0]) if get_origin(each) is Literal else each for each in members]
    for kind in _TYPES:
        if kind in kinds:
            return kind
    raise TypeError(f"{name}: {annotation} cannot be typed; declare an Option with a type, or PythonOnly")
