//! The protobuf wire format, as far as the services need it.
//!
//! A reader borrows from the message and allocates nothing, so a false length costs no memory.

/// The deepest nesting of groups in a skipped field.
const MAX_GROUPS: usize = 100;

/// Why a message is invalid.
pub(crate) type Malformed = &'static str;

/// Reads the fields of a message, one after the other.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

/// One field of a message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Field<'a> {
    pub(crate) number: u32,
    value: Value<'a>,
}

#[derive(Clone, Copy, Debug)]
enum Value<'a> {
    Varint(u64),
    Bytes(&'a [u8]),
    /// A type that no field here has.
    Other,
}

impl<'a> Reader<'a> {
    pub(crate) const fn new(message: &'a [u8]) -> Self {
        Self { rest: message }
    }

    /// The next field; `None` at the end.
    #[inline]
    pub(crate) fn field(&mut self) -> Result<Option<Field<'a>>, Malformed> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let (number, kind) = self.key()?;
        let value = match kind {
            0 => Value::Varint(self.varint()?),
            1 => self.take(8).map(|_| Value::Other)?,
            2 => Value::Bytes(self.delimited()?),
            3 => self.skip_group(number).map(|()| Value::Other)?,
            5 => self.take(4).map(|_| Value::Other)?,
            _ => return Err("a field of unknown wire type"),
        };
        Ok(Some(Field { number, value }))
    }

    fn key(&mut self) -> Result<(u32, u8), Malformed> {
        let key = u32::try_from(self.varint()?).map_err(|_| "a field number is too large")?;
        match key >> 3 {
            0 => Err("a field has number 0"),
            number => Ok((number, (key & 7) as u8)),
        }
    }

    #[inline]
    fn varint(&mut self) -> Result<u64, Malformed> {
        let mut number = 0;
        for (place, byte) in self.rest.iter().enumerate().take(10) {
            // The tenth byte has room for one bit.
            if place == 9 && *byte > 1 {
                break;
            }
            number |= u64::from(byte & 0x7f) << (7 * place);
            if *byte < 0x80 {
                self.rest = &self.rest[place + 1..];
                return Ok(number);
            }
        }
        Err(if self.rest.len() < 10 { "the message is truncated" } else { "a number is too large" })
    }

    fn delimited(&mut self) -> Result<&'a [u8], Malformed> {
        let length = self.varint()?;
        self.take(usize::try_from(length).unwrap_or(usize::MAX))
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.rest.split_at_checked(length).ok_or("the message is truncated")?;
        self.rest = rest;
        Ok(taken)
    }

    /// Skips a group and the groups within it. They are obsolete, but a reader must find their
    /// ends.
    fn skip_group(&mut self, number: u32) -> Result<(), Malformed> {
        let mut open = vec![number];
        while let Some(innermost) = open.last() {
            let (number, kind) = self.key()?;
            match kind {
                0 => drop(self.varint()?),
                1 => drop(self.take(8)?),
                2 => drop(self.delimited()?),
                3 if open.len() == MAX_GROUPS => return Err("groups are nested too deep"),
                3 => open.push(number),
                4 if number == *innermost => drop(open.pop()),
                5 => drop(self.take(4)?),
                _ => return Err("a field of unknown wire type"),
            }
        }
        Ok(())
    }
}

impl<'a> Field<'a> {
    #[inline]
    pub(crate) fn number(&self) -> Result<u64, Malformed> {
        match self.value {
            Value::Varint(number) => Ok(number),
            _ => Err("a number field has another wire type"),
        }
    }

    /// A 32-bit number. Larger values lose their upper half, as in every implementation.
    #[inline]
    pub(crate) fn number32(&self) -> Result<u32, Malformed> {
        self.number().map(|number| number as u32)
    }

    #[inline]
    pub(crate) fn bytes(&self) -> Result<&'a [u8], Malformed> {
        match self.value {
            Value::Bytes(bytes) => Ok(bytes),
            _ => Err("a text or message field has another wire type"),
        }
    }

    #[inline]
    pub(crate) fn text(&self) -> Result<&'a str, Malformed> {
        str::from_utf8(self.bytes()?).map_err(|_| "a text is not UTF-8")
    }

    /// The fields of an embedded message.
    #[inline]
    pub(crate) fn message(&self) -> Result<Reader<'a>, Malformed> {
        self.bytes().map(Reader::new)
    }
}

/// Appends fields to a message.
#[derive(Debug)]
pub(crate) struct Writer<'a> {
    bytes: &'a mut Vec<u8>,
}

impl<'a> Writer<'a> {
    pub(crate) const fn new(bytes: &'a mut Vec<u8>) -> Self {
        Self { bytes }
    }

    /// A number, unless it is 0, which equals an absent field.
    #[inline]
    pub(crate) fn number(&mut self, field: u32, number: u64) {
        if number != 0 {
            self.varint(u64::from(field << 3));
            self.varint(number);
        }
    }

    /// A text or bytes, unless empty.
    #[inline]
    pub(crate) fn bytes(&mut self, field: u32, bytes: &[u8]) {
        if !bytes.is_empty() {
            self.element(field, bytes);
        }
    }

    /// One element of a repeated text, which may be empty.
    #[inline]
    pub(crate) fn element(&mut self, field: u32, bytes: &[u8]) {
        self.varint(u64::from(field << 3 | 2));
        self.varint(bytes.len() as u64);
        self.bytes.extend_from_slice(bytes);
    }

    /// An element of a oneof, which is written even if it is 0.
    pub(crate) fn choice(&mut self, field: u32, number: u64) {
        self.varint(u64::from(field << 3));
        self.varint(number);
    }

    /// A double.
    pub(crate) fn double(&mut self, field: u32, number: f64) {
        self.varint(u64::from(field << 3 | 1));
        self.bytes.extend_from_slice(&number.to_le_bytes());
    }

    /// An embedded message, which may be empty.
    #[inline]
    pub(crate) fn message(&mut self, field: u32, write: impl FnOnce(&mut Writer<'_>)) {
        self.varint(u64::from(field << 3 | 2));
        // Nearly all lengths fit one byte; for others the message is moved.
        let start = self.bytes.len();
        self.bytes.push(0);
        write(&mut Writer { bytes: self.bytes });
        let length = self.bytes.len() - start - 1;
        if length < 0x80 {
            self.bytes[start] = length as u8;
            return;
        }
        let mut prefix = Vec::new();
        Writer { bytes: &mut prefix }.varint(length as u64);
        self.bytes.splice(start..=start, prefix);
    }

    #[inline]
    fn varint(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.bytes.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.bytes.push(number as u8);
    }
}
