use super::*;
use crate::figure::Figure;
use crate::record::{Measurement, Record, Run};
use crate::samples::{listings, loads, records, run as sample_run, sweep};
use tempfile::TempDir;

const EVIL: &str = "<script>alert(1)</script>\"'&|*`[x](y)\u{1b}";

fn everything() -> Vec<Record> {
    let mut all = loads("write", &["ours", "peer"], 3);
    all.extend(sweep(&["ours", "peer"], "clients", &[1, 4, 16]));
    all.extend(listings(&["ours", "peer"]));
    records("r", all)
}

fn evil() -> Vec<Record> {
    let mut all = loads(EVIL, &[EVIL, "b"], 3);
    all[0].first_error = Some(EVIL.into());
    all[0].parameters.insert(EVIL.into(), 1);
    let run = Run {
        id: EVIL.into(),
        experiment: EVIL.into(),
        note: EVIL.into(),
        arguments: vec![EVIL.into()],
        left_out: vec![EVIL.into()],
        subjects: [(EVIL.into(), EVIL.into())].into(),
        ..sample_run("r")
    };
    let of_run = |one| Record::Measurement(Measurement { run: EVIL.into(), ..one });
    std::iter::once(Record::Run(run)).chain(all.into_iter().map(of_run)).collect()
}

fn html(records: &[Record]) -> String {
    page(&Results::group(records), &[])
}

/// The elements of a page, which has to be XML.
fn elements(page: &str) -> Vec<String> {
    let options = roxmltree::ParsingOptions { allow_dtd: true, ..Default::default() };
    let document = roxmltree::Document::parse_with_options(page, options).expect("XML");
    let elements = document.descendants().filter(roxmltree::Node::is_element);
    elements.map(|node| node.tag_name().name().to_owned()).collect()
}

#[test]
fn the_page_is_xml_and_needs_no_other_files() {
    let page = html(&everything());
    let found = elements(&page);
    assert!(found.iter().filter(|name| *name == "svg").count() > 10);
    for name in ["script", "link", "img", "iframe", "object"] {
        assert!(!found.iter().any(|one| one == name), "{name}");
    }
    for outside in ["src=", "url(", "@import", "href=\"http"] {
        assert!(!page.contains(outside), "{outside}");
    }
    let ids = page.matches(" id=\"").count();
    assert_eq!(ids, 3, "one for each phase, and none in the drawings");
    for words in ["Linux 9.9.9", "xfs, /dev/imaginary", "Losses", "io 1 MiB", "href=\"#p3\""] {
        assert!(page.contains(words), "{words}");
    }
}

#[test]
fn text_of_records_is_never_markup() {
    let page = html(&evil());
    let found = elements(&page);
    assert!(!found.iter().any(|name| name == "script"));
    assert!(page.contains("&lt;script&gt;") && !page.contains('\u{1b}'));
    let markdown = markdown(&Results::group(&evil()), &[]);
    assert!(!markdown.contains('\u{1b}'));
    // Markdown reads text between backquotes literally, and the arguments are there.
    let prose: String = markdown.split('`').step_by(2).collect();
    assert!(prose.contains("&lt;script&gt;"));
    assert!(!prose.contains("<script>") && !prose.contains("[x](y)"), "{prose}");
}

#[test]
fn pages_of_no_and_of_few_records_are_xml() {
    elements(&html(&[]));
    elements(&html(&[Record::Run(sample_run("r"))]));
    let alone = html(&records("r", loads("write", &["alone"], 1)));
    elements(&alone);
    assert!(alone.contains("nothing to compare"), "{alone}");
    let two = html(&records("r", loads("write", &["a", "b"], 2)));
    assert!(two.contains("have too few rounds to tell"));
}

#[test]
fn the_median_of_the_rounds_is_on_the_page() {
    let mut all = loads("write", &["a"], 5);
    for (one, rate) in all.iter_mut().zip([314.0, 271.0, 999.0, 100.0, 272.0]) {
        one.figures.insert(Figure::MibPerSec, rate);
    }
    let page = html(&records("r", all));
    assert!(page.contains("<td>272 (331 %)</td>"), "the table");
    assert!(page.contains("\n272\n</text>"), "the plot");
}

#[test]
fn the_servers_processor_time_is_summed_up_before_the_median_is_taken() {
    let mut all = loads("write", &["a"], 3);
    all.extend(loads("read", &["a"], 3));
    let splits = [(0.1, 0.9), (0.2, 0.2), (0.9, 0.1)].into_iter().cycle();
    for (one, (user, system)) in all.iter_mut().zip(splits) {
        one.figures.insert(Figure::ServerUserSecsPerGib, user);
        one.figures.insert(Figure::ServerSystemSecsPerGib, system);
        // Earlier versions recorded no sum.
        if one.phase == "read" {
            one.figures.insert(Figure::ServerSecsPerGib, user + system);
        }
    }
    let text = markdown(&Results::group(&records("r", all)), &[]);
    for phase in ["write", "read"] {
        let row = format!("\n| {phase}, MiB/s | 408 (1.00) |");
        assert!(text.contains(&row), "{row} {text}");
    }
    assert_eq!(text.matches("\n| server CPU, s/GiB | 1.00 (60 %) |").count(), 2, "{text}");
}

#[test]
fn markdown_has_the_losses_first_and_keeps_its_columns() {
    let results = Results::group(&everything());
    let text = markdown(&results, &["ours".into()]);
    let losses = text.find("\n## Losses\n").expect("losses");
    let runs = text.find("\n## io, xfs, 2026").expect("a run");
    assert!(losses < runs);
    assert!(text.contains("| write; io, xfs | peer | throughput, MiB/s |"), "{text}");
    let row = text.lines().find(|line| line.starts_with("| throughput, MiB/s |"));
    // 408, 416, 404 and 200, 204, 208: half of it, by the cube root of 1.01.
    assert!(row.expect("a row").ends_with("x 0.498** |"), "{row:?}");
    assert!(text.contains("\n| write, MiB/s | 408 (0.450) | **204 (0.850)** |"), "{text}");
    assert!(text.contains("With clients 16:"), "{text}");
    for line in text.lines().filter(|line| !line.starts_with('|')) {
        assert!(line.chars().count() <= 100, "{line}");
    }
    let columns: Vec<usize> = text
        .split("\n\n")
        .filter_map(|block| {
            let lines: Vec<_> = block.lines().filter(|line| line.starts_with('|')).collect();
            let columns = lines.first()?.matches(" |").count();
            assert!(lines.iter().all(|line| line.matches(" |").count() == columns), "{block}");
            Some(columns)
        })
        .collect();
    assert!(columns.len() > 4);
}

#[test]
fn files_are_written_as_asked() {
    let directory = TempDir::new().expect("a directory");
    let path = |name: &str| directory.path().join(name);
    let line = |one: &Record| serde_json::to_string(one).expect("plain data") + "\n";
    fs::write(path("r.jsonl"), everything().iter().map(line).collect::<String>()).expect("written");
    let mut args = Args {
        files: vec![path("r.jsonl")],
        html: Some(path("r.html")),
        svg: Some(path("svg")),
        markdown: Some(path("r.md")),
        peer: vec!["peer".into()],
    };
    let mut out = Vec::new();
    run(&args, &mut out).expect("written");
    assert!(out.is_empty());
    let page = fs::read_to_string(path("r.html")).expect("a page");
    let drawings = fs::read_dir(path("svg")).expect("a directory").count();
    assert_eq!(drawings, page.matches("<svg ").count());
    assert!(
        fs::read_to_string(path("r.md"))
            .expect("Markdown")
            .contains("Nothing is significantly worse than peer.")
    );

    args.peer = vec!["unknown".into()];
    assert!(matches!(run(&args, &mut out), Err(Error::Misuse(_))));
    let terminal = Args { html: None, svg: None, markdown: None, peer: Vec::new(), ..args };
    run(&terminal, &mut out).expect("written");
    assert!(String::from_utf8(out).expect("text").contains("median of 3 rounds"));
}
