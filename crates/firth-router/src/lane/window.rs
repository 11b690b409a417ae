//! How many batches may be on their way: grows by one per round of acknowledgements, halves when
//! the gateway shows trouble.

#[derive(Debug)]
pub(super) struct Window {
    size: f64,
    max: f64,
}

impl Window {
    pub(super) fn new(max: usize) -> Self {
        let max = max.max(1) as f64;
        Self { size: max.min(4.0), max }
    }

    pub(super) fn acked(&mut self) {
        self.size = (self.size + 1.0 / self.size).min(self.max);
    }

    pub(super) fn trouble(&mut self) {
        self.size = (self.size / 2.0).max(1.0);
    }

    pub(super) fn size(&self) -> usize {
        self.size as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_grows_by_one_per_round_and_halves_at_once() {
        let mut window = Window::new(8);
        assert_eq!(window.size(), 4);
        (0..5).for_each(|_| window.acked());
        assert_eq!(window.size(), 5);
        (0..1000).for_each(|_| window.acked());
        assert_eq!(window.size(), 8);
        window.trouble();
        assert_eq!(window.size(), 4);
        (0..9).for_each(|_| window.trouble());
        assert_eq!(window.size(), 1);
        assert_eq!(Window::new(1).size(), 1);
    }
}
