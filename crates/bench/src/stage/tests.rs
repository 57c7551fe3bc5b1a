use std::process::Command;

use clap::Parser;

use super::*;
use crate::experiments::own_server::OwnServer;
use crate::subject::Subject;

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    targets: TargetOptions,
    #[command(flatten)]
    surroundings: SurroundingsOptions,
}

fn stage_and_subjects(words: &[&str]) -> (Stage, Vec<Subject>) {
    let Cli { targets, surroundings } = Cli::parse_from(["bench"].iter().chain(words));
    let stage = Stage::set(&surroundings, &targets, 1, &mut Run::default()).unwrap();
    let place = |_: &Path| panic!("they are URLs");
    (stage, Subject::all(&targets, &[], Path::new("/bin/true"), place).unwrap())
}

#[test]
fn subjects_of_one_export_have_directories_of_their_own() {
    let server = OwnServer::start();
    let url = server.url();
    let words = ["a", "b"].map(|name| format!("{name}={url}"));
    let (stage, subjects) = stage_and_subjects(&[&words[0], &words[1]]);
    let mount = |at: usize| stage.mount(&url, Version::V3, subjects[at].directory()).unwrap();
    let first = mount(0).directory;
    assert_ne!(first, mount(1).directory);
    assert_eq!(first, mount(0).directory, "a later measurement uses the files of the first");
    for subject in &subjects {
        stage.remove_directory(&url, subject.directory().unwrap()).unwrap();
    }
    assert_eq!(std::fs::read_dir(server.path()).unwrap().count(), 0);
}

#[test]
fn runs_with_one_host_name_and_process_id_have_different_directories() {
    let name = |secs| directory_name("host", 7, UNIX_EPOCH + Duration::from_secs(secs), 0);
    assert_ne!(name(1), name(2));
    assert_eq!(own_directory(0), own_directory(0), "a run's directory keeps its name");
    assert_ne!(own_directory(0), own_directory(1));
}

#[test]
fn a_server_is_mounted_through_relays_where_the_network_is_slow() {
    let server = OwnServer::start();
    let url = server.url();
    let (stage, _) = stage_and_subjects(&[&url.to_string(), "--net-delay", "1ms"]);
    let relays = stage.relays(&url).unwrap().expect("the network is slow");
    assert_ne!(relays.url.port, url.port);
    assert!(![relays.url.port, url.port].contains(&relays.url.mount_port));
    stage.mount_url(&relays.url).unwrap();
}

#[test]
fn clients_are_distinguished_at_127_without_a_relay() {
    let server = OwnServer::start();
    let url = server.url();
    let distinguished = |words: &[&str]| {
        let (stage, subjects) = stage_and_subjects(words);
        subjects[0].distinguishes_clients(&stage)
    };
    assert!(distinguished(&[&url.to_string()]).unwrap());
    // On most machines ::1 has this name too.
    let by_name = NfsUrl { host: "localhost".to_owned(), ..url.clone() };
    assert!(distinguished(&[&by_name.to_string()]).unwrap());
    assert!(!distinguished(&[&url.to_string(), "--net-delay", "1ms"]).unwrap());
}

#[test]
fn a_directory_of_another_run_is_not_used() {
    let server = OwnServer::start();
    let url = server.url();
    let (stage, subjects) = stage_and_subjects(&[&url.to_string()]);
    let directory = subjects[0].directory().unwrap();
    std::fs::create_dir(server.path().join(directory)).unwrap();
    let refused = stage.mount(&url, Version::V3, Some(directory)).map(drop).unwrap_err();
    assert!(refused.to_string().contains(directory), "{refused}");
    assert!(!stage.has_made(directory));
}

#[test]
fn options_for_started_servers_are_refused_or_left_out_for_others() {
    let left_out = |words: &[&str]| {
        let Cli { targets, surroundings } = Cli::parse_from(["bench"].iter().chain(words));
        let mut run = Run::default();
        Stage::set(&surroundings, &targets, 1, &mut run).map(|_| run.left_out)
    };
    for option in [
        "--memory-limit=1GiB",
        "--scratch=xfs:1GiB",
        "--device-rate=1MiB/s",
        "--device-iops=9",
        "--device-delay=5ms",
    ] {
        let (name, _) = option.split_once('=').unwrap();
        let refused = left_out(&["nfs://nas/x", option]).unwrap_err();
        assert!(matches!(&refused, Error::Misuse(why) if why.starts_with(name)), "{refused}");
        let noted = left_out(&["/srv", "nas=nfs://h/x", option]).unwrap();
        assert_eq!(noted, [format!("{name} was not applied to nas, which ran before.")]);
        assert_eq!(left_out(&["/srv", option]).unwrap(), Vec::<String>::new());
    }
    for option in ["--modes=direct", "--program=/bin/true", "--server-arg=--no-splice"] {
        let (name, _) = option.split_once('=').unwrap();
        let refused = left_out(&["nfs://nas/x", option]).unwrap_err();
        assert!(matches!(&refused, Error::Misuse(why) if why.starts_with(name)), "{refused}");
        // They are about subjects, which the record lists.
        assert_eq!(left_out(&["/srv", "nas=nfs://h/x", option]).unwrap(), Vec::<String>::new());
    }
}

#[test]
fn files_are_removed_after_the_watched_process_has_ended() {
    let server = OwnServer::start();
    let mut ended = Command::new("true").spawn().unwrap();
    let pid = ended.id();
    ended.wait().unwrap();
    let (url, pid) = (format!("a={}", server.url()), format!("a={pid}"));
    let (stage, subjects) = stage_and_subjects(&[&url, "--pid", &pid]);
    let [subject] = &subjects[..] else { panic!("one subject") };
    let directory = subject.directory().unwrap();
    stage.mount(&server.url(), Version::V3, Some(directory)).unwrap();
    std::fs::write(server.path().join(directory).join("file"), "data").unwrap();
    subject.tidy(&stage, ["file".to_owned()].into_iter()).unwrap();
    assert_eq!(std::fs::read_dir(server.path()).unwrap().count(), 0);
}

#[test]
fn a_file_that_cannot_be_removed_does_not_keep_the_others() {
    let server = OwnServer::start();
    let (stage, subjects) = stage_and_subjects(&[&server.url().to_string()]);
    let directory = subjects[0].directory().unwrap();
    stage.mount(&server.url(), Version::V3, Some(directory)).unwrap();
    let files = server.path().join(directory);
    std::fs::create_dir(files.join("no-file")).unwrap();
    std::fs::write(files.join("file"), "data").unwrap();
    let names = ["no-file", "file"].map(str::to_owned);
    let refused = subjects[0].tidy(&stage, names.into_iter()).unwrap_err();
    assert!(refused.to_string().contains("REMOVE no-file"), "{refused}");
    assert!(!files.join("file").exists());
}
