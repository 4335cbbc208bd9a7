//! Helpers of this layer's tests.

use crate::io::BatchBuffer;

/// A batch buffer on the heap.
pub(crate) struct VecBuffer(Vec<u8>);

impl BatchBuffer for VecBuffer {
    fn allocate(len: usize) -> Self {
        // Any content is allowed: nothing of it may reach the disk.
        VecBuffer(vec![0xa5; len])
    }

    fn bytes(&self) -> &[u8] {
        &self.0
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }

    fn trim(&mut self, len: usize) {
        self.0.truncate(len);
    }
}
