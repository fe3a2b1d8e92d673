#!/bin/bash
# book.sh BUILT OUT: the documents as a book, OUT/index.html, with a reference out of the programs in the folder BUILT and of docs/man.
# mdBook is what mdbook.sh has in target/mdbook.
set -euo pipefail
[ $# -eq 2 ] || {
    sed -n '2,3s/^# //p' "$0" >&2
    exit 2
}
built=$(realpath "$1") out=$(realpath -m "$2")
cd "$(dirname "$(realpath "$0")")/.."
mdbook=${CARGO_TARGET_DIR:-$PWD/target}/mdbook
scripts/mdbook.sh "$mdbook"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/docs"

# Copies the book's files to their places in the repository, so that links lead where they lead there.
linked() { # PAGE...: what they link to, as paths from the top
    for page in "$@"; do
        { grep -o ']([^)#:]*' "$page" || true; } | sed 's/^](//' | while read -r target; do
            path=$(realpath -m --relative-to=. "$(dirname "$page")/$target")
            if [ -f "$path" ] || { [ -d "$path" ] && [[ $path == */* ]]; }; then echo "$path"; fi
        done
    done
}
pages=(README.md CONTRIBUTING.md ARCHITECTURE.md GLOSSARY.md)
while read -r page; do pages+=("$page"); done < <(find docs examples research -name '*.md' ! -name SUMMARY.md ! -path '*/.*' | sort)
# mdBook would leave out what is no page of its own; other files are copied.
{
    printf '%s\n' "${pages[@]}"
    linked "${pages[@]}"
} | sort -u | tar -cT - | tar -xC "$work"
# mdBook calls a README index.html, and leaves links to it alone.
find "$work" -name '*.md' -exec sed -i 's,\(\]([^)]*\)README\.md,\1index.md,g' {} +

# page FILE TITLE FROM...: man pages as one page.
page() {
    local to=$1 title=$2
    shift 2
    {
        echo "# $title"
        for from in "$@"; do
            name=$(basename "$from")
            printf '\n## %s\n\n' "${name%.*}"
            # Headings go below the page's; an empty line would end the HTML for a reader of Markdown.
            mandoc -T html -O fragment "$from" | sed '/<table class="\(head\|foot\)">/,/<\/table>/d' | sed 's,^$,<!-- -->,; s,<\(/\?\)h1,<\1h3,g; s,<\(/\?\)h2,<\1h4,g'
        done
    } > "$work/docs/reference/$to"
}
"$built/tarn" __manual "$work/share" 1970-01-01
"$built/tarn-bench" __manual "$work/share" 1970-01-01
"$built/tarnd" __manual "$work/share" 1970-01-01
page commands.md Commands "$work"/share/man/man*/*
page calls.md "C interfaces" docs/man/*.3
rm -r "$work/share"

sed 's,](\([^.)]\),](docs/\1,; s,](\.\./,](,' docs/SUMMARY.md > "$work/SUMMARY.md"
sed "s,^build-dir = .*,build-dir = \"$out\"," docs/book.toml > "$work/book.toml"
"$mdbook/mdbook" build "$work" >&2
