use super::*;
use crate::cli;

fn all() -> Vec<Page> {
    pages(cli::definition()).expect("pages are made in memory")
}

fn text(name: &str) -> String {
    let page = all().into_iter().find(|page| page.name == name);
    String::from_utf8(page.unwrap_or_else(|| panic!("no page {name}")).text).unwrap()
}

#[test]
fn each_command_has_a_page_with_its_options() {
    fn assert_page(command: &Command, pages: &[Page]) {
        let name = command.get_display_name().unwrap_or(PROGRAM);
        let page = pages.iter().find(|page| page.name == name);
        let text = String::from_utf8_lossy(&page.unwrap_or_else(|| panic!("no page {name}")).text);
        for argument in command.get_arguments().filter(|argument| !argument.is_hide_set()) {
            let Some(long) = argument.get_long() else { continue };
            let long = format!(r"\fB\-\-{}\fR", long.replace('-', r"\-"));
            assert!(text.contains(&long), "{name} does not describe {long}");
        }
        visible(command).for_each(|inner| assert_page(inner, pages));
    }
    let mut root = cli::definition().disable_help_subcommand(true);
    root.build();
    assert_page(&root, &all());
}

#[test]
fn the_synopsis_names_the_values_of_options() {
    let line = |name| {
        let page = text(name).replace("\\fB", "").replace("\\fI", "").replace("\\fR", "");
        page.lines().skip_while(|line| *line != ".SH SYNOPSIS").nth(1).unwrap().replace('\\', "")
    };
    let serve = line("spillway-serve");
    assert!(
        serve.starts_with("spillway serve [--config FILE] [--listen ADDR:PORT]... "),
        "{serve}"
    );
    assert!(serve.ends_with("[--log-format FORMAT] [-h|--help] [DIR]"), "{serve}");
    assert!(line("spillway-ls").ends_with("[-o OPTION[,OPTION...]]... URL..."));
    assert!(line("spillway").ends_with(" COMMAND"), "{}", line("spillway"));
    let drop_client = line("spillway-drop-client");
    assert!(drop_client.ends_with("[--json] [-h|--help] ADDRESS"), "{drop_client}");
}

#[test]
fn commands_of_an_administrator_are_in_section_8() {
    let pages = all();
    let section = |name| pages.iter().find(|page| page.name == name).map(|page| page.section);
    assert_eq!(section("spillway-serve"), Some("8"));
    assert_eq!(section("mount.spillway"), Some("8"));
    assert_eq!(section("spillway-ls"), Some("1"));
    assert_eq!(section("spillway-bench-io"), Some("1"));
    assert_eq!(section("spillway.toml"), Some("5"));
    assert_eq!(section("spillway"), Some("1"));
    assert!(text("spillway").contains("\\fBspillway\\-serve\\fR(8)\n"));
}

#[test]
fn a_document_becomes_roff() {
    let document = "# Title\n\nFirst [part](other.md)<!-- A_MAX --> of it,\nwith `code`.\n\n\
        ## The keys: `[[export]]`\n\n### `path`\n- one\n  line\n- *two*\n\n    $ ls -l\n\n\
        | a | b | c |\n| --- | --- | --- |\n| `x` | y | z |\n";
    let mut roff = Roff::new();
    markdown::append(document, &mut roff);
    let expected = [
        "First part of it,",
        r"with \fBcode\fR.",
        ".SH",
        r"THE KEYS: \fB[[export]]\fR",
        ".SS",
        r"\fBpath\fR",
        r".IP \(bu 2",
        "one",
        "line",
        r".IP \(bu 2",
        r"\fItwo\fR",
    ];
    let text = roff.to_roff();
    assert!(text.starts_with(&expected.join("\n")), "{text}");
    assert!(text.ends_with(".TP\n\\fBx\\fR\ny; c: z\n"), "{text}");
}

#[test]
fn pages_do_not_refer_to_files_of_the_repository() {
    // A link keeps its text alone, which has to be words.
    for name in ["spillway.toml", "spillway-mount"] {
        let page = text(name);
        let named: Vec<_> = page.lines().filter(|line| line.contains(".md")).collect();
        assert!(named.is_empty(), "{name}: {named:#?}");
    }
}

#[test]
fn pages_have_the_text_at_the_end_of_the_help() {
    let (ls, set) = (text("spillway-ls"), text("spillway-set"));
    assert!(ls.contains(".SH URLS\n.nf\nnfs://HOST[:PORT]/PATH;"), "{ls}");
    assert!(set.contains(".SH EXAMPLES\n.nf\nspillway set /data io_cache_read=direct\n"), "{set}");
}

#[test]
fn the_page_of_the_configuration_file_describes_keys() {
    let page = text("spillway.toml");
    assert!(page.contains(".SS\n\\fBstate_dir\\fR\nDirectory of the key"), "{page}");
    assert!(!page.contains("<!--"), "{page}");
}

#[test]
fn completions_know_the_commands() {
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        let mut script = Vec::new();
        clap_complete::generate(shell, &mut cli::definition(), PROGRAM, &mut script);
        let script = String::from_utf8(script).unwrap();
        assert!(script.contains("serve") && script.contains("state-dir"), "{shell}: {script}");
    }
}
