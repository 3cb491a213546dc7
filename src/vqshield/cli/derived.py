"""Commands derived from Python calls: options, their defaults and their help are those of the call.

Each parameter of the call becomes an option, with its default from the signature (or a settings dataclass)
and its help from the docstring's Args or Attributes. An `Option` declares what differs, `PythonOnly` what a
command does not have:

    @derived(vq.certify, radii=Option("radius"), labels=PythonOnly("belongs to images that are tensors"))
    def certify(values: Values, records: RecordOptions, strict: Strict = False) -> None:
        '''Certify a defended classifier.'''
        values.call(vq.certify, out=records.out)

The function's other parameters are options as well; one whose type is a dataclass is a group of options.
"""

import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass, replace
from functools import wraps
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import typer
from typer.models import OptionInfo

Result = TypeVar("Result")
_SECTION = re.compile("^(Args|Attributes):$", re.MULTILINE)
_ENTRY = re.compile(r" {4}(\w+(?:, \w+)*): (.*)")
_TYPES = (bool, Path, str, int, float)
"""What can be typed, the preferred first where a parameter takes several."""


@dataclass(frozen=True)
class Option:
    """How an option differs from its parameter.

    Attributes:
        name, type, help: those of the parameter if None.
        argument: whether it is an argument, which is typed without a flag.
        metavar: how its value is shown in the help.
        default: its default, and the reason why that is not the parameter's.
        parse: makes the parameter's value from the typed one and the values of all options.
    """

    name: str | None = None
    type: Any = None
    help: str | None = None
    argument: bool = False
    metavar: str | None = None
    default: tuple[object, str] | None = None
    parse: Callable[[Any, Mapping[str, Any]], object] | None = None


class PythonOnly(str):
    """Why a parameter has no option."""


@dataclass(frozen=True)
class Presets:
    """Settings without and with --quick. Where the two differ, the option has no default of its own."""

    full: object
    quick: object


Source = Callable[..., object] | Presets
Declared = Mapping[str, Option | PythonOnly]


class Values(dict[str, Any]):
    """The values of a command's options, by the parameters of the Python call."""

    def arguments(self, target: Callable[..., object]) -> dict[str, Any]:
        """The arguments of a call. An option without a value is left out: the call's default holds."""
        known = inspect.signature(target).parameters
        return {name: value for name, value in self.items() if name in known and value not in (None, ())}

    def call(self, target: Callable[..., Result], **others: object) -> Result:
        return target(**(self.arguments(target) | others))

    def settings(self, preset: Result, **others: object) -> Result:
        """A preset with the values of its options, and with other values."""
        changes = self.arguments(type(preset)) | others
        return replace(preset, **changes)  # type: ignore[type-var]


class Derivation:
    """The options of a command by the parameters of its calls, and what runs with their values."""

    def __init__(self, sources: Sequence[Source], declared: Declared, function: Callable[..., None]) -> None:
        self.sources, self.declared, self.function = sources, declared, function
        self.groups: dict[str, type] = {}
        self.own: dict[str, inspect.Parameter] = {}
        beside: dict[str, inspect.Parameter] = {}
        options = {name: how for name, how in declared.items() if isinstance(how, Option)}
        for name, parameter in inspect.signature(function, eval_str=True).parameters.items():
            if isinstance(parameter.annotation, type) and is_dataclass(parameter.annotation):
                self.groups[name] = parameter.annotation
                beside |= _options(parameter.annotation, options)
            elif parameter.annotation is not Values:
                self.own[name] = parameter.replace(kind=parameter.KEYWORD_ONLY)
        beside |= self.own
        self.options: dict[str, inspect.Parameter] = {}
        for source in sources:
            self.options |= _options(source, declared, taken=[*self.options, *beside])
        self.options |= beside

    def call(self, typed: Mapping[str, object]) -> None:
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
        sources: the calls that the command makes, and the settings that it makes for them. The first with a
            parameter of a name declares it, unless the function does.
        declared: declarations for parameters of these sources, and for options of groups.
    """

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        derivation = Derivation(sources, declared, function)

        @wraps(function)
        def command(**typed: object) -> None:
            derivation.call(typed)

        signature = inspect.Signature([*derivation.options.values()])
        vars(command).update(__signature__=signature, derivation=derivation)
        return command

    return decorate


def parameters(source: Source) -> dict[str, inspect.Parameter]:
    """The parameters of a call, or the fields of settings, annotated with a type and a help text."""
    target = type(source.full) if isinstance(source, Presets) else source
    texts = documented(target)
    annotated = dict(inspect.signature(target, eval_str=True).parameters)
    for name, parameter in annotated.items():
        text, default = texts.get(name, ""), parameter.default
        if isinstance(source, Presets) and getattr(source.full, name) != getattr(source.quick, name):
            default = None
            full, quick = (_shown(getattr(preset, name)) for preset in (source.full, source.quick))
            text = f"{text.removesuffix('.')} (default: {full}; with --quick {quick})."
        annotated[name] = parameter.replace(default=default, annotation=Annotated[parameter.annotation, text])
    return annotated


def documented(target: Callable[..., object]) -> dict[str, str]:
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
    options = {}
    for name, parameter in parameters(source).items():
        how = declared.get(name, Option())
        if isinstance(how, Option) and name not in taken:
            options[name] = _option(parameter, how)
    return options


def _option(parameter: inspect.Parameter, how: Option) -> inspect.Parameter:
    """The parameter of a command for one of a call."""
    annotation, *extras = get_args(parameter.annotation)
    name, text = how.name or parameter.name, how.help or _help(extras[-1])
    default = parameter.default if how.default is None else how.default[0]
    kind = how.type or option_type(annotation, parameter.name)
    if get_origin(kind) is list and default is not parameter.empty:
        default = default or None
        text = f"{text.removesuffix('.')}; may be repeated."
    elif kind is Path and isinstance(default, str):
        default = Path(default)
    if isinstance(extras[0], OptionInfo):
        info: object = extras[0]
    elif how.argument:
        info = typer.Argument(help=text, metavar=how.metavar)
    else:
        flags = [f"--{name.replace('_', '-')}"] if default is False else []  # without a --no-
        info = typer.Option(*flags, help=text, metavar=how.metavar)
    kind = kind | None if default is None else kind
    return inspect.Parameter(name, parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, info])


def _help(text: str) -> str:
    """The text of a docstring as the help of an option."""
    first = text[:1].upper()  # a quoted word stays as it is typed
    return (first + text[1:]).replace("`", "").replace('"', "")


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
