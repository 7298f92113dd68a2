#!/usr/bin/env bash
# The coding conventions that a machine can check, as fast as awk and grep are. Prints file:line: what is
# wrong, one line each, then a count; fails if there are any.
set -uo pipefail
cd "$(dirname "$0")/.."

format_version=14 # clang-format versions disagree: this one decides
# Every file that is ours: git's, or, in an unpacked archive, all but what was built.
ours() {
    if git rev-parse --git-dir >/dev/null 2>&1; then
        git ls-files -co --exclude-standard | while read -r f; do [ -f "$f" ] && echo "$f"; done
    else
        find . -type f ! -path './build*' ! -path './.git/*' ! -path './runs/*/*' | cut -c 3-
    fi
}
mapfile -t all < <(ours | grep -E '\.(c|h|inc|cu|cuh)$')
mapfile -t src < <(printf '%s\n' "${all[@]}" | grep -E '^(src|include)/')
mapfile -t headers < <(printf '%s\n' "${all[@]}" | grep -E '^(src|include)/.*\.h$')
out=$(mktemp)
trap 'rm -f "$out"' EXIT

# Includes go only the way scripts/includes.txt says, which grants nothing that nobody takes.
include_direction() {
    awk '
    FILENAME ~ /includes\.txt$/ {
        if ($0 !~ /^#/ && NF) {
            folder = $1; sub(/:$/, "", folder); known[folder] = 1
            for (i = 2; i <= NF; i++) may[folder, $i] = FILENAME ":" FNR ": " folder " includes no " $i
        }
        next
    }
    FILENAME ~ /^src\// && /^[ \t]*#[ \t]*include[ \t]*"/ {
        split(FILENAME, path, "/"); folder = path[2]
        split($0, quoted, "\""); what = quoted[2]
        n = split(what, part, "/"); to = part[1]
        if (!(folder in known)) { print FILENAME ":" FNR ": folder " folder " is not in scripts/includes.txt"; next }
        file = substr(FILENAME, 5)
        taken[folder, to] = taken[folder, what] = taken[file, what] = 1
        if (what == "loopline.h" || (folder, what) in may || what ~ /^[a-z_]+\.inc$/ || (n > 1 && to == folder)) next
        if (n == 1) { print FILENAME ":" FNR ": write \"" folder "/" what "\": includes start at src/"; next }
        if (!((folder, to) in may) && !((folder, what) in may) && !((file, what) in may))
            print FILENAME ":" FNR ": src/" folder " may not include " what " (scripts/includes.txt)"
    }
    END { for (grant in may) if (!(grant in taken)) print may[grant] }' scripts/includes.txt "${src[@]}"
}

# A file does not include again what its own header, or the folder's _int.h, includes itself.
includes_again() {
    awk '
    /^#include/ && FILENAME ~ /\.h$/ { has[substr(FILENAME, 5), $2] = 1 }
    /^#include/ && FILENAME ~ /^src\/.*\.c$/ && FILENAME !~ /^src\/(kern|plan)/ {
        own = substr(FILENAME, 5); sub(/c$/, "h", own); folder = own; sub(/\/.*/, "", folder)
        header = $2; gsub(/"/, "", header)
        if (header == own || (header ~ /_int\.h$/ && index(header, folder "/") == 1)) mine[FILENAME, header] = 1
        at[FILENAME, $2] = FNR
    }
    END {
        for (m in mine) { split(m, by, SUBSEP)
            for (a in at) { split(a, what, SUBSEP)
                if (what[1] == by[1] && (by[2], what[2]) in has)
                    print what[1] ":" at[a] ": " what[2] " is included by " by[2] " already" } }
    }' "${headers[@]}" "${src[@]}" | sort
}

# Files of a folder are in layers: none calls a function that leads back to it. Excepted are, among
# themselves, ops whose gradients are each other's, and the placer, which prices an expansion by
# placing it.
circles_known="op/elementwise op/reduce op/shape pass/place pass/place_detour"
circles() {
    for folder in $(printf '%s\n' "${src[@]}" | sed -nE 's,^src/(.*)/[^/]*\.cu?$,\1,p' | sort -u); do
        circles_of "$folder"
    done
}
circles_of() {
    local files
    mapfile -t files < <(printf '%s\n' "${src[@]}" | grep -E "^src/$1/[^/]*\.cu?$")
    awk '
    FNR == 1 { comment = 0 }
    { # without comments
        line = $0; sub(/^extern "C" /, "", line)
        if (comment && !match(line, /\*\//)) next
        if (comment) line = substr(line, RSTART + 2)
        for (comment = 0; match(line, /\/\*/); ) {
            rest = substr(line, RSTART + 2); line = substr(line, 1, RSTART - 1)
            if (match(rest, /\*\//)) line = line " " substr(rest, RSTART + 2); else comment = 1
        }
    }
    pass == 1 && line ~ /^[a-z]/ && line !~ /^(static|typedef|extern|enum|union|struct [a-z_]+ {)/ && line !~ /;[ \t]*$/ {
        if (match(line, /(^|[ *])ll_[a-z0-9_]+(\(|(\[.*\])? =)/)) {
            name = substr(line, RSTART, RLENGTH); gsub(/[^a-z0-9_]/, "", name); home[name] = FILENAME
        }
    }
    pass == 2 {
        while (match(line, /ll_[a-z0-9_]+/)) {
            name = substr(line, RSTART, RLENGTH); line = substr(line, RSTART + RLENGTH)
            if (!(name in home) || home[name] == FILENAME) continue
            calls[FILENAME, home[name]] = FNR ": in a circle of files: " name " of " home[name] " leads back to here"
            file[FILENAME] = file[home[name]] = 1
        }
    }
    END {
        for (f in file) for (g in file) leads[f, g] = (f, g) in calls
        for (k in file) for (f in file) if (leads[f, k]) for (g in file) if (leads[k, g]) leads[f, g] = 1
        n = split(known, except, " ")
        for (i = 1; i <= n; i++) old["src/" except[i] ".c"] = 1
        for (c in calls) {
            split(c, ends, SUBSEP)
            if (leads[ends[2], ends[1]] && !(ends[1] in old && ends[2] in old)) print ends[1] ":" calls[c]
        }
    }' known="$circles_known" pass=1 "${files[@]}" pass=2 "${files[@]}" | sort
}

# Each header alone as C, but those that a .c file begins with, which the build compiles so; as C++
# (for nvcc) a folder's one behind the other, alone where that fails.
headers_alone() {
    local gen
    gen=$(mktemp -d) # what the build makes of onnx.proto; headers that want it wait for protoc-c
    protoc-c --proto_path=src/onnx --c_out="$gen" onnx.proto 2>/dev/null
    mpi="-I$gen -DOMPI_SKIP_MPICXX -DMPICH_SKIP_MPICXX $(mpicc -show 2>/dev/null | grep -oE -- '-(I|isystem )[^ ]+' | tr '\n' ' ')"
    compiles() { # LANGUAGE HEADER...
        local lang=$1
        shift
        # shellcheck disable=SC2086
        printf '#include "%s"\n' "${@#*/}" | $lang -Wall -Wextra -Werror -Isrc -Iinclude $mpi -fsyntax-only - >/dev/null 2>&1
    }
    alone() { # LANGUAGE HEADER...
        for h in "${@:2}"; do
            compiles "$1" "$h" ||
                echo "$h:1: does not compile alone: echo '#include \"${h#*/}\"' | $1 -Wall -Wextra -Isrc -Iinclude -fsyntax-only -"
        done
    }
    of_folder() { # HEADER...
        for h in "$@"; do [[ $begun = *" ${h#*/} "* ]] || alone 'gcc -std=gnu2x -x c' "$h"; done
        compiles 'g++ -std=c++17 -x c++' "$@" || alone 'g++ -std=c++17 -x c++' "$@"
    }
    begun=" $(printf '%s\n' "${src[@]}" | grep '\.c$' |
        xargs awk '/^#/ { if ($1 == "#include" && $2 ~ /"/) { gsub(/"/, "", $2); print $2 } nextfile }' | tr '\n' ' ')"
    export mpi begun
    export -f compiles alone of_folder
    printf '%s\n' "${headers[@]}" | if [ -e "$gen/onnx.pb-c.h" ]; then cat; else grep -vE '^src/onnx/(read|scope|walk)\.h'; fi |
        awk -F/ '{ f = $0; sub(/\/[^\/]*$/, "", f); of[f] = of[f] " " $0 } END { for (f in of) print of[f] }' |
        xargs -P "$(nproc)" -I{} bash -c 'of_folder {}'
    rm -r "$gen"
}

# Functions of at most 100 lines (kernels and tables excepted), files of 800, lines of 100 columns.
sizes() {
    awk '
    FNR == 1 { if (last && lines > 800) print last ":800: the file has " lines " lines, at most 800"; last = FILENAME; start = 0 }
    { lines = FNR }
    /^\{/ { start = FNR }
    /^\}/ { if (start && FNR - start > 100 && FILENAME !~ /^src\/kern\//) print FILENAME ":" start ": a function of " FNR - start " lines, at most 100"; start = 0 }
    { if (length($0) > 100 && $0 !~ /https?:\/\//) print FILENAME ":" FNR ": " length($0) " columns, at most 100" }
    END { if (lines > 800) print last ":800: the file has " lines " lines, at most 800" }' "${all[@]}"
}

# What an op does is said in src/op and src/kern, not in a switch elsewhere.
op_switch() {
    printf '%s\n' "${src[@]}" | grep -vE '^src/(op|kern)/' |
        xargs grep -nE 'switch *\(.*\b(op|ew)\b' /dev/null |
        sed 's/^\([^:]*:[0-9]*\):.*/\1: a switch on the kind of op belongs in src\/op/'
}

# Outside of the table of machines, and of what reads their names, nobody asks which one it is; nor
# by name which op a node is, outside of src/op and src/kern (op/ops.h, and fields of ll_op).
names() {
    printf '%s\n' "${src[@]}" | grep -vE '^(include/|src/machine/|src/pass/target|src/run/run_(keys|value)\.c)' |
        xargs grep -nE '"(cpu|cuda|ref)"|[!=]= *&ll_target_' /dev/null |
        grep -vE '\.machine = "ref"|cell\(' |
        sed 's/^\([^:]*:[0-9]*\):.*/\1: which machine it is, is a column of ll_machine or ll_target/'
    printf '%s\n' "${src[@]}" | grep -vE '^src/(op|kern|ir|ccode|onnx)/' |
        xargs grep -nE 'str(n?cmp|str|chr)\([^"]*op(->name)?, "' /dev/null |
        sed 's/^\([^:]*:[0-9]*\):.*/\1: an op is told by a field of ll_op, or by op\/ops.h/'
}

# A type's name is of one type: a struct, union or enum with a body, or a typedef. The same typedef
# elsewhere is no other type; two in one file are cases of an #if. (Names of one file, without ll_,
# are its own.)
types() {
    awk '
    function defined(name, what) {
        if (name !~ /^ll_/) return
        if (!(name in file)) { file[name] = FILENAME; at[name] = FILENAME ":" FNR; is[name] = what }
        else if (file[name] != FILENAME && (what == "" || is[name] != what))
            print FILENAME ":" FNR ": there is another type " name ": " at[name]
    }
    /^(struct|union|enum) ll_[a-z0-9_]+ \{/ { defined($2, "") }
    /^typedef (struct|union|enum) .*\{.*\}/ || /^\} *ll_[a-z0-9_]+/ {
        sub(/.*\} */, ""); sub(/[^a-z0-9_].*/, ""); defined($0, "")
        next
    }
    /^typedef [^{]*$/ && !/^typedef (struct|union|enum) [a-z0-9_]+ [a-z0-9_]+;/ {
        gsub(/struct |\/\*.*|__attribute__.*/, "")
        if (match($0, /[ *]ll_[a-z0-9_]+\)?([(\[]|[; ]*$)/)) {
            name = substr($0, RSTART, RLENGTH); gsub(/[^a-z0-9_]/, "", name); defined(name, $0)
        }
    }' "${src[@]}"
}

unfinished() {
    ours | grep -v '^scripts/lint\.sh$' |
        xargs grep -nIwE 'TODO|FIXME|XXX|HACK' /dev/null |
        sed 's/^\([^:]*:[0-9]*\):.*/\1: finish it, or say it as a fact/'
}

# Whoever takes in bytes from outside has a fuzzer, in tests/fuzz/readers.txt, that calls its parser.
readers() {
    local table=tests/fuzz/readers.txt calls file parser fuzzer
    calls='(^|[^a-z_>.])(ll_file_read|ll_file_map|ll_bytes_map|fopen|fscanf|fgets|getline|read|pread|recv|inflate|json_load[a-z_]*'
    calls+='|yaml_parser_parse)\('
    printf '%s\n' "${src[@]}" | grep -E '\.c$' | xargs grep -lE "$calls" | while read -r file; do
        grep -q "^$file " $table || echo "$file:1: reads bytes from outside: say in $table who gives it any"
    done
    grep -HoE '\bll_([a-z_]*_)?parse(_[a-z]+)?\(' "${headers[@]}" | sort -u | while IFS=: read -r file parser; do
        grep -qE " ${parser%(} " $table || echo "$file:1: ${parser%(} is a parser: say in $table who fuzzes it"
    done
    grep -vE '^#' $table | while read -r file parser fuzzer _; do
        [ -f "$file" ] || echo "$table:1: there is no $file"
        case "$parser $fuzzer" in -* | *" -") continue ;; esac
        grep -qE "\b$parser\(" "tests/fuzz/$fuzzer.c" 2>/dev/null || echo "$table:1: $fuzzer does not call $parser"
    done
}

test_names() {
    printf '%s\n' "${all[@]}" | grep -E '/(test|fuzz)_[^/]*\.c$' | awk -F/ '
    { if ($NF in seen) print $0 ":1: the name is taken by " seen[$NF]; seen[$NF] = $0 }'
}

# Headers have #pragma once; every file of code starts with a comment that says the idea.
file_tops() {
    printf '%s\n' "${src[@]}" | grep -E '\.(h|cuh)$' | xargs grep -L '^#pragma once' | sed 's/$/:1: no #pragma once/'
    awk 'FNR == 1 { if (!/^\/\*/) print FILENAME ":1: does not start with a comment"; nextfile }' "${all[@]}"
}

format() {
    local have
    have=$(clang-format --version 2>/dev/null | grep -oE '[0-9]+' | head -n 1)
    if [ "$have" != "$format_version" ]; then
        echo "lint: format skipped (clang-format ${have:-absent}, the rules are for $format_version)" >&2
        return
    fi
    printf '%s\n' "${all[@]}" | xargs -P "$(nproc)" -n 50 clang-format --dry-run -Werror 2>&1 |
        sed -n 's/^\([^:]*:[0-9]*\):.*error:.*/\1: not as clang-format would have it/p' | sort -u
}

rules=${RULES:-"include_direction includes_again circles headers_alone sizes op_switch names types unfinished readers test_names file_tops format"} # RULES=names: that one alone
bad=0
for rule in $rules; do
    $rule >"$out"
    [ -s "$out" ] && bad=$((bad + 1)) && cat "$out"
done
echo "lint: $(echo $rules | wc -w) rules, $bad broken"
[ $bad = 0 ]
