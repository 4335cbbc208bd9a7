/// Memory that one log batch is built in and written from: a DMA buffer in the
/// driver, a `Vec` in the simulator.
pub trait BatchBuffer: Sized + 'static {
    /// At least `len` bytes of any content, aligned for direct I/O.
    fn allocate(len: usize) -> Self;
    /// The bytes.
    fn bytes(&self) -> &[u8];
    /// The bytes, while nothing else holds the buffer.
    fn bytes_mut(&mut self) -> &mut [u8];
    /// Shortens the buffer to `len` bytes; it never grows again.
    fn trim(&mut self, len: usize);
}
