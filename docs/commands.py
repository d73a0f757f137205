"""The commands that the documentation tells a reader to type.

In Markdown these are the lines of blocks fenced as bash, and of other code blocks, fenced or indented, whose first line begins
with one of STARTS. In C++ they are the lines of indented comment blocks whose first line does. A line ends with a backslash
when the next one goes on; `&&` and `;` part commands; `#` begins a comment.
"""
import dataclasses
import re
import shlex

# What the first line of a block that is not fenced as bash must begin with to be taken for commands.
STARTS = ("bazel ", "bazel-bin/", "tools/", ".ci/")

FENCE = re.compile(r" *```(\w*) *$")
ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=(?!\$\()")
CODE_COMMENT = re.compile(r"//   +(\S.*)$")


class BadLine(Exception):
    """A line that no shell would take as it stands."""


@dataclasses.dataclass(frozen=True)
class Line:
    """A line of a block, continuations joined."""
    file: str
    number: int
    text: str
    block: int  # which of the file's blocks

    def commands(self):
        """Lists of words. Variables are not expanded; of commands in commands only `which` is."""
        text = re.sub(r"\$\(which (\w+)\)", r"\1", self.text)
        lexer = shlex.shlex(text, posix=True, punctuation_chars="&;|")
        lexer.whitespace_split = True
        commands = [[]]
        try:
            for word in lexer:
                if set(word) <= set("&;|"):
                    commands.append([])
                else:
                    commands[-1].append(word)
        except ValueError as error:
            raise BadLine(f"{error}: {self.text}") from error
        return [words for words in commands if words]


def split_assignments(words):
    """["A=b", "prog", "x"] -> ({"A": "b"}, ["prog", "x"])."""
    count = 0
    while count < len(words) and ASSIGNMENT.match(words[count]):
        count += 1
    return dict(word.split("=", 1) for word in words[:count]), words[count:]


def _join(file, numbered, block):
    """Lines of a block, with what ends in a backslash joined to what follows."""
    begin, text = 0, ""
    for number, line in numbered:
        if not text:
            begin = number
        text += line.strip()
        if text.endswith("\\"):
            text = text[:-1].rstrip() + " "
            continue
        if text and not text.startswith("#"):
            yield Line(file, begin, text, block)
        text = ""
    if text:
        raise BadLine(f"{file}:{begin}: ends with a backslash, and nothing follows")


def _are_commands(numbered, is_bash):
    first = next((line.strip() for _, line in numbered if line.strip() and not line.strip().startswith("#")), "")
    return is_bash or first.startswith(STARTS)


def _markdown_blocks(text):
    """(is_bash, [(number, line)]) of each code block."""
    language, block = None, []  # of the fence that is open
    indented, before_is_blank = [], True
    for number, line in enumerate(text.split("\n"), 1):
        fence = FENCE.match(line)
        if language is not None:
            if fence:
                yield language == "bash", block
                language = None
            else:
                block.append((number, line))
            continue
        if line.startswith("    ") and line.strip() and (indented or before_is_blank):
            indented.append((number, line))
        elif indented:
            yield False, indented
            indented = []
        if fence:
            language, block = fence.group(1), []
        before_is_blank = not line.strip()
    if language is not None:
        raise BadLine("a fence is not closed")
    if indented:
        yield False, indented


def _comment_blocks(text):
    block = []
    for number, line in enumerate(text.split("\n"), 1):
        match = CODE_COMMENT.match(line)
        if match:
            block.append((number, match.group(1)))
        elif block:
            yield False, block
            block = []


def lines_of(file, text):
    """The lines of commands in a Markdown or C++ file."""
    blocks = _markdown_blocks(text) if file.endswith(".md") else _comment_blocks(text)
    for index, (is_bash, numbered) in enumerate(blocks):
        if _are_commands(numbered, is_bash):
            yield from _join(file, numbered, index)
