//! `backlot man`: the manual, as one page with a section for each command.

use std::io::{self, Write as _};

use clap::{Arg, Command, CommandFactory as _};
use clap_mangen::{
    Man,
    roff::{Roff, roman},
};

use crate::{cli::Cli, commands::print, console::Console, exit::Exit};

pub(crate) async fn man(console: &Console) -> anyhow::Result<Exit> {
    print(console, page()?).await?;
    Ok(Exit::Completed)
}

fn page() -> io::Result<Vec<u8>> {
    let mut cli = Cli::command().disable_help_subcommand(true);
    cli.build();
    let verbs: Vec<Command> = cli
        .get_subcommands()
        .flat_map(|verb| {
            let own = verb.get_subcommands().filter(|own| own.get_name() != "help");
            std::iter::once(verb).chain(own)
        })
        .cloned()
        .collect();
    let mut page = Vec::new();
    let main = Man::new(cli);
    main.render_title(&mut page)?;
    main.render_name_section(&mut page)?;
    main.render_synopsis_section(&mut page)?;
    main.render_description_section(&mut page)?;
    main.render_options_section(&mut page)?;
    for verb in verbs {
        section(verb, &mut page)?;
    }
    Ok(page)
}

/// Writes the section of a command, whose own sections are one level below.
fn section(verb: Command, page: &mut Vec<u8>) -> io::Result<()> {
    let name = verb.get_bin_name().unwrap_or_else(|| verb.get_name()).to_uppercase();
    let more = verb.get_after_help().map(ToString::to_string);
    let man = Man::new(verb.mut_args(own));
    let mut sections = Vec::new();
    man.render_synopsis_section(&mut sections)?;
    man.render_description_section(&mut sections)?;
    man.render_options_section(&mut sections)?;
    if let Some(more) = more {
        let mut roff = Roff::new();
        roff.control("SH", ["NOTES"]).control("nf", []);
        for line in more.lines() {
            roff.text([roman(line)]);
        }
        roff.control("fi", []).to_writer(&mut sections)?;
    }
    writeln!(page, ".SH \"{name}\"")?;
    for line in String::from_utf8_lossy(&sections).lines() {
        match line.strip_prefix(".SH ") {
            Some(heading) => writeln!(page, ".SS {heading}")?,
            // What roff puts in front of all that it writes: how `'` is shown.
            None if line.starts_with(".ie ") || line.starts_with(".el ") => {}
            None => writeln!(page, "{line}")?,
        }
    }
    Ok(())
}

/// Hides what every command has, which the main part of the page tells.
fn own(arg: Arg) -> Arg {
    let shared = arg.is_global_set() || matches!(arg.get_id().as_str(), "help" | "version");
    if shared { arg.hide(true) } else { arg }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_a_section_and_examples_keep_their_lines() {
        let page = String::from_utf8(page().unwrap()).unwrap();
        for verb in Cli::command().get_subcommands() {
            let heading =
                format!(".SH \"BACKLOT {}\"\n.SS SYNOPSIS\n", verb.get_name().to_uppercase());
            assert!(page.contains(&heading), "{heading} is missing:\n{page}");
        }
        assert!(page.contains(".SH \"BACKLOT POLICY EXPLAIN\"\n.SS SYNOPSIS\n"), "{page}");
        assert!(page.contains(".TH backlot 1"), "{page}");
        assert!(page.contains(".nf\nExit codes: "), "{page}");
        // What all commands have is told once.
        assert_eq!(page.matches("Print help").count(), 1, "{page}");
    }
}
