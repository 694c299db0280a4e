//! Tasks in an order that they enter at the end.
//!
//! A million tasks are kept here, and one comes and goes with every start. So a
//! task enters by a push, leaves the front by a pop, and leaves the middle as a
//! hole; holes are closed once they outnumber the tasks.

use std::collections::VecDeque;

/// Tasks, or whatever else, under numbers that grow from each to the next.
pub(crate) struct Shelf<T> {
    /// Neither the first nor the last is a hole.
    places: VecDeque<(u64, Option<T>)>,
    holes: usize,
}

impl<T> Default for Shelf<T> {
    fn default() -> Self {
        Self { places: VecDeque::new(), holes: 0 }
    }
}

impl<T> Shelf<T> {
    /// Puts a task behind all others. Its number must be larger than theirs.
    pub(crate) fn push(&mut self, number: u64, task: T) {
        debug_assert!(self.places.back().is_none_or(|(last, _)| *last < number));
        self.places.push_back((number, Some(task)));
    }

    /// Takes the task with that number out.
    pub(crate) fn remove(&mut self, number: u64) -> Option<T> {
        if self.places.front()?.0 == number {
            // The oldest goes most often.
            return self.pop_first();
        }
        let index = self.places.binary_search_by_key(&number, |(number, _)| *number).ok()?;
        let task = self.places.get_mut(index)?.1.take()?;
        self.holes += 1;
        self.close_holes();
        Some(task)
    }

    /// Takes the first task out.
    pub(crate) fn pop_first(&mut self) -> Option<T> {
        let (_, task) = self.places.pop_front()?;
        self.close_holes();
        task
    }

    pub(crate) fn first(&self) -> Option<&T> {
        self.places.front()?.1.as_ref()
    }

    pub(crate) fn len(&self) -> usize {
        self.places.len() - self.holes
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Returns the tasks with larger numbers, in their order.
    pub(crate) fn after(&self, number: u64) -> impl Iterator<Item = (u64, &T)> {
        let from = self.places.partition_point(|(at, _)| *at <= number);
        self.places.range(from..).filter_map(|(number, task)| Some((*number, task.as_ref()?)))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.places.iter().filter_map(|(_, task)| task.as_ref())
    }

    fn close_holes(&mut self) {
        while self.places.front().is_some_and(|(_, task)| task.is_none()) {
            self.places.pop_front();
            self.holes -= 1;
        }
        while self.places.back().is_some_and(|(_, task)| task.is_none()) {
            self.places.pop_back();
            self.holes -= 1;
        }
        if self.holes > self.len() {
            self.places.retain(|(_, task)| task.is_some());
            self.holes = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_shelf_is_a_map_that_grows_at_its_end(
            steps in proptest::collection::vec((0..5_u8, 0..200_u64), 0..400),
        ) {
            let mut shelf = Shelf::default();
            let mut map = BTreeMap::new();
            let mut last = 0;
            for (step, number) in steps {
                match step {
                    0..3 => {
                        last += 1 + number % 3;
                        shelf.push(last, last);
                        map.insert(last, last);
                    }
                    3 => prop_assert_eq!(shelf.remove(number), map.remove(&number)),
                    _ => prop_assert_eq!(shelf.pop_first(), map.pop_first().map(|(_, it)| it)),
                }
                prop_assert_eq!(shelf.len(), map.len());
                prop_assert_eq!(shelf.is_empty(), map.is_empty());
                prop_assert_eq!(shelf.first(), map.values().next());
                prop_assert!(shelf.iter().eq(map.values()));
                prop_assert!(shelf.places.len() <= 2 * map.len(), "holes are bounded");
                let after: Vec<_> = shelf.after(number).map(|(at, _)| at).collect();
                let expected: Vec<_> = map.range(number + 1..).map(|(at, _)| *at).collect();
                prop_assert_eq!(after, expected);
            }
        }
    }
}
