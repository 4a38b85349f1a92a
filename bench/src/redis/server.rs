//! The server's own statistics.

use std::collections::HashMap;
use std::time::Duration;

use ::redis::{Client, Cmd, Connection, FromRedisValue};

use super::contender::Trouble;

/// A connection for statistics only.
pub struct Control(Connection);

/// The server's statistics at one instant.
pub struct Account {
    fields: HashMap<String, String>,
}

impl Control {
    pub fn connect(url: &str) -> Result<Self, Trouble> {
        let client = Client::open(url).map_err(Trouble::of)?;
        Ok(Self(client.get_connection().map_err(Trouble::of)?))
    }

    pub fn ask<T: FromRedisValue>(&mut self, words: &[&str]) -> Result<T, Trouble> {
        let mut command = Cmd::new();
        words.iter().for_each(|word| {
            command.arg(word);
        });
        command.query(&mut self.0).map_err(Trouble::of)
    }

    pub fn account(&mut self) -> Result<Account, Trouble> {
        let info: String = self.ask(&["INFO", "everything"])?;
        let fields = info.lines().filter_map(|line| line.split_once(':'));
        let fields = fields.map(|(name, value)| (name.to_owned(), value.trim().to_owned()));
        Ok(Account { fields: fields.collect() })
    }

    /// Bytes in use, once they no longer change: a table exists twice while it grows.
    pub fn bytes(&mut self) -> Result<f64, Trouble> {
        let mut before = self.account()?.number("used_memory");
        loop {
            std::thread::sleep(Duration::from_millis(150));
            let now = self.account()?.number("used_memory");
            // Less than a table's worth: buffers of connections come and go.
            if (now - before).abs() < 16_384.0 {
                return Ok(now);
            }
            before = now;
        }
    }
}

impl Account {
    pub fn number(&self, field: &str) -> f64 {
        let value = self.fields.get(field).and_then(|value| value.parse().ok());
        value.unwrap_or(f64::NAN)
    }

    /// Processor time so far.
    pub fn cpu(&self) -> f64 {
        self.number("used_cpu_user") + self.number("used_cpu_sys")
    }

    /// How often these commands were called, by clients or by scripts.
    pub fn calls(&self, commands: &[&str]) -> f64 {
        let calls = commands.iter().filter_map(|command| {
            let counts = self.fields.get(&format!("cmdstat_{command}"))?;
            counts.strip_prefix("calls=")?.split(',').next()?.parse::<f64>().ok()
        });
        calls.sum()
    }
}
