//! Just enough of a calendar for chat templates that ask for today's date, and for reports. UTC, Gregorian.

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

const WEEKDAYS: [&str; 7] = ["Thursday", "Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday"];

const DAY_S: u64 = 24 * 3600;

/// Writes a moment, given in seconds after the beginning of 1970, by a `strftime` format. Known marks: `%Y %y %m %d %e %B
/// %b %A %a %H %M %S %%`; others stay as they are.
pub fn format(format: &str, unix_s: u64) -> String {
    let (year, month, day) = civil(unix_s / DAY_S);
    let month_name = MONTHS[month as usize - 1];
    let weekday = WEEKDAYS[(unix_s / DAY_S % 7) as usize];
    let in_day_s = unix_s % DAY_S;
    let mut text = String::new();
    let mut letters = format.chars();
    while let Some(letter) = letters.next() {
        if letter != '%' {
            text.push(letter);
            continue;
        }
        match letters.next() {
            Some('Y') => text += &year.to_string(),
            Some('y') => text += &format!("{:02}", year % 100),
            Some('m') => text += &format!("{month:02}"),
            Some('d') => text += &format!("{day:02}"),
            Some('e') => text += &format!("{day:2}"),
            Some('B') => text += month_name,
            Some('b') => text += &month_name[..3],
            Some('A') => text += weekday,
            Some('a') => text += &weekday[..3],
            Some('H') => text += &format!("{:02}", in_day_s / 3600),
            Some('M') => text += &format!("{:02}", in_day_s / 60 % 60),
            Some('S') => text += &format!("{:02}", in_day_s % 60),
            Some('%') => text.push('%'),
            Some(other) => text.extend(['%', other]),
            None => text.push('%'),
        }
    }
    text
}

/// Year, month (from 1) and day (from 1) of a day counted from 1 January 1970.
fn civil(mut days: u64) -> (u64, u64, u64) {
    let mut year = 1970;
    while days >= year_days(year) {
        days -= year_days(year);
        year += 1;
    }
    let mut month = 1;
    while days >= month_days(year, month) {
        days -= month_days(year, month);
        month += 1;
    }
    (year, month, days + 1)
}

fn is_leap(year: u64) -> bool {
    year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
}

fn year_days(year: u64) -> u64 {
    365 + u64::from(is_leap(year))
}

fn month_days(year: u64, month: u64) -> u64 {
    match month {
        2 => 28 + u64::from(is_leap(year)),
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

#[cfg(test)]
mod tests {
    use super::format;

    #[test]
    fn moments_are_written() {
        let cases = [
            (0, "%Y-%m-%d %H:%M:%S %A", "1970-01-01 00:00:00 Thursday"),
            (951_782_399, "%d %b %Y %H:%M:%S %a", "28 Feb 2000 23:59:59 Mon"),
            (951_782_400, "%e %B %y", "29 February 00"),
            (1_735_689_599, "%d %b %Y, %A", "31 Dec 2024, Tuesday"),
            (4_107_542_400, "%Y-%m-%d", "2100-03-01"),
            (0, "100%% %Q %", "100% %Q %"),
        ];
        for (unix_s, pattern, wanted) in cases {
            assert_eq!(format(pattern, unix_s), wanted, "{unix_s}");
        }
    }
}
