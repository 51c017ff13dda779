//! Shell completions and man pages, made from the definitions of the arguments.

use std::process::{Command, Stdio};

use crate::binary::run;

/// The commands that `--help` lists.
fn commands() -> Vec<String> {
    let help = run(None, &["--help"], "").stdout;
    let list = help.split_once("Commands:").expect("a list of commands").1;
    let lines = list.lines().skip(1).take_while(|line| !line.is_empty());
    let names = lines.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    names.filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect()
}

#[test]
fn the_guide_lists_every_command_in_the_order_of_the_help() {
    let list = crate::support::guide::chapter("tool").split_once("The subcommands are ").expect("a list").1;
    let list = list.split_once(';').expect("its end").0;
    let names: Vec<&str> = list.split('`').skip(1).step_by(2).collect();
    let mut commands = commands();
    assert_eq!(commands.pop().as_deref(), Some("help"));
    assert_eq!(names, commands);
}

#[test]
fn completions_are_scripts_that_name_every_command() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let printed = run(None, &["completions", shell], "");
        assert_eq!(printed.code, Some(0), "{}", printed.stderr);
        for command in commands() {
            assert!(printed.stdout.contains(&command), "{shell}: {command}");
        }
    }
    let refused = run(None, &["completions", "cmd"], "");
    assert_eq!(refused.code, Some(2));
    assert!(refused.stderr.contains("possible values: bash"), "{}", refused.stderr);
}

#[test]
fn bash_completes_a_command_and_an_option() {
    let script = run(None, &["completions", "bash"], "").stdout;
    // What bash itself does: it calls the registered function with the command, the word and the word before it.
    let complete = |before: &str, word: &str| {
        let words: Vec<&str> = before.split(' ').collect();
        let asked = format!(
            "{script}\nCOMP_WORDS=({before} {word}); COMP_CWORD={}; COMPREPLY=()\n\
             [[ $(complete -p pg-limiter) =~ -F\\ ([^ ]+) ]]\n\
             ${{BASH_REMATCH[1]}} pg-limiter {word} {}\necho \"${{COMPREPLY[*]}}\"",
            words.len(),
            words[words.len() - 1]
        );
        let output = Command::new("bash").args(["-c", &asked]).stdin(Stdio::null()).output().expect("run bash");
        String::from_utf8(output.stdout).expect("UTF-8").trim().to_owned()
    };
    assert_eq!(complete("pg-limiter", "doc"), "doctor");
    assert_eq!(complete("pg-limiter migrate", "--che"), "--check");
}

#[test]
fn the_man_pages_cover_every_command() {
    let page = run(None, &["man"], "");
    assert_eq!(page.code, Some(0), "{}", page.stderr);
    assert!(page.stdout.contains(".TH pg-limiter 1") && page.stdout.contains("simulate"), "{}", page.stdout);

    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().to_str().expect("UTF-8");
    assert_eq!(run(None, &["man", "--to", path], "").code, Some(0));
    for command in commands().iter().filter(|command| *command != "help") {
        let page = std::fs::read_to_string(dir.path().join(format!("pg-limiter-{command}.1"))).expect(command);
        assert!(page.contains(".SH OPTIONS"), "{command}");
    }
    assert!(dir.path().join("pg-limiter-queue-requeue.1").exists(), "commands of commands, too");

    let missing = format!("{path}/missing");
    let refused = run(None, &["man", "--to", &missing], "");
    assert_eq!(refused.code, Some(2));
    assert!(refused.stderr.contains(&missing) && refused.stderr.contains("name a folder"), "{}", refused.stderr);
}
