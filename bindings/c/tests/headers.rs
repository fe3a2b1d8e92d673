//! The examples in the comments of the headers: they are compiled, and run but for those that need a tarnd.

mod common;

use common::{compiler, output_of, source};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The examples of a header: comment lines that are indented by four spaces more than the text.
fn examples(header: &str) -> Vec<String> {
    let text = std::fs::read_to_string(source("include").join(header)).unwrap();
    let (mut all, mut open) = (Vec::new(), false);
    for line in text.lines() {
        match line.strip_prefix(" *     ") {
            Some(code) => {
                if !std::mem::replace(&mut open, true) {
                    all.push(String::new());
                }
                let example: &mut String = all.last_mut().unwrap();
                example.extend([code, "\n"]);
            }
            // An empty line may be within an example.
            None => open &= line == " *",
        }
    }
    all
}

/// A program that runs the example of the given number, between `before` and `after`.
fn program(
    folder: &Path,
    header: &str,
    common: &str,
    around: impl Fn(&str) -> (&'static str, &'static str),
) -> (PathBuf, usize) {
    let all = examples(header);
    let mut text = format!(
        "#define _GNU_SOURCE\n#include <stdio.h>\n#include <stdlib.h>\n#include <sys/mman.h>\n#include <unistd.h>\n\
         #include \"{header}\"\n{common}\nint main(int count, char **words)\n{{\n    if (count != 2)\n        return 2;\n    \
         switch (atoi(words[1])) {{\n"
    );
    for (number, example) in all.iter().enumerate() {
        let (before, after) = around(example);
        text += &format!("case {number}: {{\n{before}{{\n{example}}}\n{after}break;\n}}\n");
    }
    text += "default: return 2;\n    }\n    return 0;\n}\n";
    let (file, program) = (folder.join("a.c"), folder.join("examples"));
    std::fs::write(&file, text).unwrap();
    let flags = [
        "-std=gnu11",
        "-Wno-unused-variable",
        "-Wno-unused-but-set-variable",
    ];
    output_of(&mut compiler(
        "cc",
        &flags,
        &[file.to_str().unwrap()],
        &program,
    ));
    (program, all.len())
}

/// Runs each example of a program in a folder of its own.
fn run((program, count): (PathBuf, usize), folder: &Path) {
    for number in 0..count {
        let own = folder.join(number.to_string());
        std::fs::create_dir_all(own.join("store")).unwrap();
        output_of(
            Command::new(&program)
                .arg(number.to_string())
                .current_dir(&own)
                .env("TARN_PHX_TIER", own.join("tier"))
                .env("TARN_PHX_MEMORY", own.join("memory"))
                .env("TARN_OBJECTS", own.join("store")),
        );
    }
}

const MUST: &str = "static void must(int code)\n{\n    if (code > LAST_GOOD) {\n        \
    fprintf(stderr, \"%d: %s\\n\", code, WHY());\n        exit(1);\n    }\n}\n";

#[test]
fn the_examples_of_checkpoints_run() {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let common = format!(
        "#define LAST_GOOD PHX_DEGRADED\n#define WHY phx_last_error\n{MUST}\
         static void begin(void)\n{{\n    struct phx_options options = {{.size = sizeof options, .ranks = 1, .run = \"heat\"}};\n    \
         void *memory;\n    must(phx_init(&options));\n    must(phx_create_obj(\"field\", 8000, 8, NULL, &memory));\n}}\n"
    );
    let around = |example: &str| {
        let begins = example.contains("phx_init(");
        let ends = example.contains("phx_finalize(");
        (
            if begins { "" } else { "begin();\n" },
            if ends { "" } else { "must(phx_finalize());\n" },
        )
    };
    let all = program(folder.path(), "phx.h", &common, around);
    assert!(all.1 >= 16, "{}", all.1);
    run(all, folder.path());
}

#[test]
fn the_examples_of_objects_run() {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let common = format!("#define LAST_GOOD PHX_OK\n#define WHY phx_last_error\n{MUST}");
    let all = program(folder.path(), "tarn_objects.h", &common, |_| ("", ""));
    assert!(all.1 >= 7, "{}", all.1);
    run(all, folder.path());
}

#[test]
fn the_examples_of_direct_access_run() {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let common = format!("#define LAST_GOOD TARN_OK\n#define WHY tarn_last_error\n{MUST}");
    let around = |_: &str| ("must(dsa_create(\"./field\", 1 << 20, NULL, 0));\n", "");
    let all = program(folder.path(), "dsa.h", &common, around);
    assert!(all.1 >= 9, "{}", all.1);
    run(all, folder.path());
}

#[test]
fn the_examples_of_tasks_compile() {
    let folder = tempfile::tempdir().unwrap();
    let common = format!("#define LAST_GOOD TARN_OK\n#define WHY tarn_last_error\n{MUST}");
    let around = |example: &str| match example.contains("*tarnd") {
        true => ("", ""),
        false => (
            "struct tarn_connection *tarnd = NULL;\nuint64_t id = 0;\n",
            "(void)tarnd;\n(void)id;\n",
        ),
    };
    let (_, count) = program(folder.path(), "tarn.h", &common, around);
    assert!(count >= 8, "{count}");
}
