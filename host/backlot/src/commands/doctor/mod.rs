//! `backlot doctor`: whether this machine suits the host, and what to do where
//! it does not.
//!
//! [`facts`] looks, [`findings`] judges, and what is here prints.

mod facts;
mod findings;

use self::{
    facts::Facts,
    findings::{Finding, Status, findings},
};
use crate::{
    cli::{Common, Doctor},
    commands::{print, run},
    console::Console,
    exit::Exit,
    render, wire,
};

pub(crate) async fn doctor(
    args: Doctor,
    common: &Common,
    console: &Console,
) -> anyhow::Result<Exit> {
    let facts = Facts::gather(&common.config(run::INSTANCES), common.data()).await;
    let findings = findings(&facts);
    let ok = findings.iter().all(|finding| finding.status != Status::Fail);
    let text = match args.json {
        true => wire::line(&wire::Checkup {
            ok,
            checks: findings.iter().map(check).collect(),
            error: None,
        }),
        false => text(&findings),
    };
    print(console, text).await?;
    Ok(match ok {
        true => Exit::Completed,
        false => Exit::Failed,
    })
}

/// Returns a line for each finding.
fn text(findings: &[Finding]) -> String {
    let widest = findings.iter().map(|finding| finding.name.len()).max().unwrap_or_default();
    let mut text = String::new();
    for Finding { name, status, value, fix } in findings {
        let status = status.name();
        let mut line = format!("{status:<4}  {name:<widest$}  {value}");
        if let Some(fix) = fix {
            line = format!("{line}  → {fix}");
        }
        text += &render::one_line(&line);
        text.push('\n');
    }
    text
}

fn check(finding: &Finding) -> wire::Check {
    wire::Check {
        name: finding.name,
        status: finding.status.name(),
        value: render::one_line(&finding.value),
        fix: finding.fix.as_deref().map(render::one_line),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_is_one_line_in_columns() {
        let finding = |name, status, value: &str, fix: Option<&str>| Finding {
            name,
            status,
            value: value.to_owned(),
            fix: fix.map(str::to_owned),
        };
        let findings = [
            finding("open files", Status::Warn, "64", Some("`ulimit -n 4096`")),
            finding("memory", Status::Ok, "a\nb", None),
        ];
        assert_eq!(
            text(&findings),
            "warn  open files  64  → `ulimit -n 4096`\nok    memory      a b\n"
        );
    }
}
