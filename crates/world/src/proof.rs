//! The figures in `docs/reference/proof.md`, kept true: each search compares what it came to with its row there. With
//! `AYATORI_TEST_BLESS=1` it writes the row instead.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::Mutex;
use std::{env, fs};

use crate::backend::Kind;

/// One search at a time writes to the page.
static PAGE: Mutex<()> = Mutex::new(());

/// A table of the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Table {
    Scenarios,
    Widest,
    Faults,
}

impl Table {
    fn mark(self) -> &'static str {
        match self {
            Table::Scenarios => "<!-- scenarios -->\n",
            Table::Widest => "<!-- widest -->\n",
            Table::Faults => "<!-- faults -->\n",
        }
    }

    fn head(self) -> &'static str {
        match self {
            Table::Scenarios => {
                "| backend | scenario | controllers | states | transitions | decisions | cramped | undecided |\n\
                 | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |\n"
            }
            Table::Widest => {
                "| backend | scenario | controllers | states | transitions | decisions | cramped | undecided | complete | seconds |\n\
                 | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | --- | ---: |\n"
            }
            Table::Faults => {
                "| backend | test | fault | breaks | in steps | found after states |\n\
                 | --- | --- | --- | --- | ---: | ---: |\n"
            }
        }
    }

    /// How many cells say which row it is.
    fn names(self) -> usize {
        match self {
            Table::Scenarios | Table::Widest => 3,
            Table::Faults => 2,
        }
    }

    /// How many cells are the same each time.
    fn checked(self) -> usize {
        match self {
            Table::Scenarios => 8,
            Table::Widest => 9,
            Table::Faults => 6,
        }
    }
}

const TOTALS: &str = "<!-- totals -->\n";
const TOTALS_HEAD: &str = "| backend | controllers | scenarios | states | transitions | promises broken | Jobs without an end | undecided |\n\
                           | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n";
const END: &str = "<!-- end -->";

/// The root of the checkout.
fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// How people call a backend.
pub(crate) fn backend(kind: Kind) -> &'static str {
    match kind {
        Kind::Named => "Kubernetes",
        Kind::Unnamed => "OpenSandbox, Execd",
        Kind::SingleShot => "OpenSandbox, Entrypoint",
    }
}

/// A number as people read it.
pub(crate) fn figure(number: usize) -> String {
    let digits = number.to_string();
    let mut figure = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            figure.push(',');
        }
        figure.push(digit);
    }
    figure
}

/// Compares a row with the one on the page, or writes it there.
pub(crate) fn hold(table: Table, cells: &[String]) {
    let path = root().join("docs/reference/proof.md");
    let _alone = PAGE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let page = fs::read_to_string(&path).expect("docs/reference/proof.md can be read");
    let mut rows = rows(&page, table.mark());
    let names = &cells[..table.names()];
    let known = rows.iter().position(|row| row.starts_with(names));
    if env::var_os("AYATORI_TEST_BLESS").is_none() {
        if table == Table::Widest && known.is_none() {
            // Nobody has had the time yet.
            return;
        }
        let checked = |row: &[String]| row[..table.checked()].to_vec();
        assert_eq!(
            known.map(|known| checked(&rows[known])),
            Some(checked(cells)),
            "docs/reference/proof.md (left) does not say what this search came to (right). If that is as it should be: \
             AYATORI_TEST_BLESS=1 cargo test -p ayatori-world"
        );
        return;
    }
    match known {
        Some(known) => rows[known] = cells.to_vec(),
        None => rows.push(cells.to_vec()),
    }
    rows.sort();
    let mut page = with_rows(&page, table.mark(), table.head(), &rows);
    if table == Table::Scenarios {
        page = with_rows(&page, TOTALS, TOTALS_HEAD, &totals(&rows));
    }
    fs::write(&path, page).expect("docs/reference/proof.md can be written");
}

/// Keeps a story where people find it.
pub(crate) fn tell(name: &str, story: &str) {
    let folder = root().join("target/world");
    fs::create_dir_all(&folder).expect("target/world can be made");
    fs::write(folder.join(format!("{name}.txt")), story).expect("target/world can be written");
}

fn rows(page: &str, mark: &str) -> Vec<Vec<String>> {
    let (_, rest) = page.split_once(mark).expect("the page has this table");
    let (table, _) = rest.split_once(END).expect("a table ends");
    table
        .lines()
        .skip(2)
        .map(|line| {
            line.trim_matches(['|', ' '])
                .split(" | ")
                .map(str::to_owned)
                .collect()
        })
        .collect()
}

fn with_rows(page: &str, mark: &str, head: &str, rows: &[Vec<String>]) -> String {
    let (before, rest) = page.split_once(mark).expect("the page has this table");
    let (_, after) = rest.split_once(END).expect("a table ends");
    let mut table = String::new();
    for row in rows {
        let _ = writeln!(table, "| {} |", row.join(" | "));
    }
    format!("{before}{mark}{head}{table}{END}{after}")
}

/// Sums for each kind of backend and number of controllers. A search that breaks a promise, or that leaves a Job
/// without an end, has no row.
fn totals(rows: &[Vec<String>]) -> Vec<Vec<String>> {
    let number = |cell: &str| -> usize { cell.replace(',', "").parse().expect("a number") };
    let mut sums: BTreeMap<[String; 2], [usize; 4]> = BTreeMap::new();
    for row in rows {
        let [backend, _, controllers, states, transitions, .., undecided] = row.as_slice() else {
            panic!("a row of the page is cut: {row:?}");
        };
        for key in [
            [backend.clone(), controllers.clone()],
            ["all".to_owned(), "1 or 2".to_owned()],
        ] {
            let sum = sums.entry(key).or_default();
            sum[0] += 1;
            sum[1] += number(states);
            sum[2] += number(transitions);
            sum[3] += number(undecided);
        }
    }
    sums.into_iter()
        .map(
            |([backend, controllers], [scenarios, states, transitions, undecided])| {
                let [scenarios, states, transitions] = [scenarios, states, transitions].map(figure);
                let none = || "0".to_owned();
                let undecided = figure(undecided);
                vec![
                    backend,
                    controllers,
                    scenarios,
                    states,
                    transitions,
                    none(),
                    none(),
                    undecided,
                ]
            },
        )
        .collect()
}

#[test]
fn the_totals_on_the_page_are_the_sums_of_its_rows() {
    let _alone = PAGE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let page = fs::read_to_string(root().join("docs/reference/proof.md")).expect("the page can be read");
    assert_eq!(
        rows(&page, TOTALS),
        totals(&rows(&page, Table::Scenarios.mark())),
        "the totals in docs/reference/proof.md"
    );
}
