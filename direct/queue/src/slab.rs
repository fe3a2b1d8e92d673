//! Things under way, by small numbers that are used again.

use tarn_ring::Ticket;

/// Things by their numbers.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    slots: Vec<Option<T>>,
    free: Vec<Ticket>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
        }
    }
}

impl<T> Slab<T> {
    /// The number that the next one will have.
    #[inline]
    pub(crate) fn next(&self) -> Ticket {
        match self.free.last() {
            Some(ticket) => *ticket,
            None => self.slots.len() as Ticket,
        }
    }

    /// One more.
    pub(crate) fn insert(&mut self, thing: T) -> Ticket {
        let ticket = self.next();
        match self.free.pop() {
            Some(free) => {
                let before = self.slots[free as usize].replace(thing);
                debug_assert!(before.is_none(), "number {free} is free and in use");
            }
            None => self.slots.push(Some(thing)),
        }
        ticket
    }

    /// Takes one out; none where there is no such number.
    pub(crate) fn remove(&mut self, ticket: Ticket) -> Option<T> {
        let thing = self.slots.get_mut(ticket as usize)?.take()?;
        self.free.push(ticket);
        Some(thing)
    }

    /// The thing of a number.
    pub(crate) fn get_mut(&mut self, ticket: Ticket) -> Option<&mut T> {
        self.slots.get_mut(ticket as usize)?.as_mut()
    }

    /// All of them.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.slots.iter().flatten()
    }
}
